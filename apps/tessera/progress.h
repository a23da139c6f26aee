// What the user sees while a network trains: one line that is written over on a terminal, plain lines otherwise.
#pragma once

#include <cstdint>
#include <string>

#include "tessera/runtime/trainer.h"

namespace tessera {

struct ProgressOptions {
  std::int64_t steps = 0;
  std::int64_t batch_size = 0;
  bool quiet = false;
  bool every_step = false;  ///< one line per step, even on a terminal
};

class Progress {
 public:
  explicit Progress(const ProgressOptions& options);
  void step(const StepReport& report, std::int64_t peak_bytes);
  /// A line that stays: the progress of the next step begins a new one.
  void say(const std::string& line);
  /// Ends the line, if one is open.
  void finish();
  /// At the end of a run: says so if it waited for images much of the time, and what helps. `workers` read them.
  void advise(int workers);
  /// A warning, on a line of its own; also when quiet.
  void warn(const std::string& message);

 private:
  const ProgressOptions options_;
  const bool terminal_;
  bool open_ = false;
  std::int64_t line_every_;
  std::int64_t shown_ = 0;           ///< steps of this process, which may have started at a later one
  double seconds_per_step_ = 0;      ///< a running mean
  double seconds_ = 0, waited_ = 0;  ///< of all steps but the first, which waits for images in any case
};

/// "tessera: warning: ..." on standard error.
void print_warning(const std::string& message);

}  // namespace tessera
