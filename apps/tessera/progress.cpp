#include "progress.h"

#include <fmt/core.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "run.h"
#include "tessera/base/text.h"

namespace tessera {

Progress::Progress(const ProgressOptions& options)
    : options_(options),
      // A launcher gives its first process a terminal wherever the output goes.
      terminal_(isatty(STDOUT_FILENO) && !MpiSession::started_by_launcher() && !options.every_step),
      // About fifty lines in a log, whatever its length.
      line_every_(options.every_step ? 1 : std::max<std::int64_t>(1, options.steps / 50)) {}

void Progress::step(const StepReport& r, std::int64_t peak_bytes) {
  // The first step also pays for memory and for the choice of kernels, so it counts only while it is alone.
  seconds_per_step_ = ++shown_ <= 2 ? r.seconds : 0.9 * seconds_per_step_ + 0.1 * r.seconds;
  if (shown_ > 1) {
    seconds_ += r.seconds;
    waited_ += r.part(Part::data);
  }
  const std::int64_t done = r.step + 1;
  if (options_.quiet || (!terminal_ && shown_ != 1 && done != options_.steps && done % line_every_ != 0)) return;
  std::string line = fmt::format(
      "step {}/{}  epoch {}  loss {:.4f}  {}  data {:.0f}%  memory {}  left {}", done, options_.steps, r.epoch + 1,
      r.loss, human_speed(static_cast<double>(options_.batch_size) / r.seconds), 100 * r.part(Part::data) / r.seconds,
      human_bytes(peak_bytes), human_seconds(seconds_per_step_ * static_cast<double>(options_.steps - done)));
  if (options_.every_step) {
    line += fmt::format("  lr {:.3g}", r.learning_rate);
    if (r.gradient_norm > 0) line += fmt::format("  gradient {:.3g}", r.gradient_norm);
  }
  if (terminal_) {
    // A line that wraps could not be written over.
    winsize window{};
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 1)
      line.resize(std::min<std::size_t>(line.size(), window.ws_col - 1));
    fmt::print("\r\033[K{}", line);
    open_ = true;
  } else {
    fmt::print("{}\n", line);
  }
  std::fflush(stdout);
}

void Progress::say(const std::string& line) {
  finish();
  if (options_.quiet) return;
  fmt::print("{}\n", line);
  std::fflush(stdout);
}

void Progress::finish() {
  if (open_) fmt::print("\n");
  open_ = false;
  std::fflush(stdout);
}

void Progress::advise(int workers) {
  constexpr double worth_a_line = 0.1, at_least_seconds = 5;
  if (seconds_ < at_least_seconds || waited_ < worth_a_line * seconds_) return;
  say(
      fmt::format("Waiting for images took {:.0f}% of the time, with {} per rank to read them ahead. What helps: more "
                  "--num-workers where cores are idle; images of the size that is trained on; arrays (.npy) or tiled "
                  "TIFF, which several threads read at once, in place of PNG or JPEG.",
                  100 * waited_ / seconds_, counted(workers, "thread")));
}

void print_warning(const std::string& message) { fmt::print(stderr, "tessera: warning: {}\n", message); }

void Progress::warn(const std::string& message) {
  finish();
  print_warning(message);
}

}  // namespace tessera
