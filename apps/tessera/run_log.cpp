#include "run_log.h"

#include "tessera/base/error.h"

namespace tessera {
namespace {

constexpr const char* metrics_file = "metrics.jsonl";

}  // namespace

void check_log_dir(const std::string& dir, bool resumed) {
  if (dir.empty()) return;
  try {
    make_folders(dir);
    const std::string path = join_path(dir, metrics_file);
    require(resumed || !is_file(path) || InputFile(path).size() == 0, "--log-dir ", dir,
            " holds the log of another run; choose another folder");
    const AppendFile writable(path);
  } catch (const UsageError&) {
    throw;
  } catch (const Error& error) {
    throw UsageError(concat("--log-dir ", dir, ": ", error.what()));
  }
}

RunLog::RunLog(RunLogOptions options) : options_(std::move(options)) {
  if (options_.dir.empty()) return;
  // Steps count from 1 for people.
  const std::int64_t first = options_.start + 1;
  metrics_.emplace(join_path(options_.dir, metrics_file), first);
  events_.emplace(options_.dir, options_.resumed ? std::optional<std::int64_t>(first) : std::nullopt);
}

void RunLog::step(const StepReport& r, std::int64_t peak_bytes) {
  if (!metrics_) return;
  std::vector<Metric> metrics{{"train/loss", r.loss},
                              {"train/epoch", r.epoch + 1},
                              {"train/learning_rate", r.learning_rate},
                              {"speed/images_per_second", static_cast<double>(options_.batch_size) / r.seconds},
                              {"speed/step_seconds", r.seconds},
                              {"speed/data_wait_seconds", r.part(Part::data)},
                              {"memory/peak_bytes", peak_bytes}};
  if (r.gradient_norm > 0) metrics.push_back({"train/gradient_norm", r.gradient_norm});
  write(r.step + 1, metrics);
}

void RunLog::document(const std::string& name, const std::function<void(const std::string&)>& write) {
  if (!metrics_) return;
  try {
    write(join_path(options_.dir, name));
  } catch (const Error& error) {  // of the report only; the curves go on
    options_.warn(concat(name, " of the log is not written: ", error.what()));
  }
}

void RunLog::write(std::int64_t step, const std::vector<Metric>& metrics) {
  if (!metrics_) return;
  try {
    const double time = wall_clock();
    metrics_->write(step, metrics, time);
    events_->write(step, metrics, time);
  } catch (const Error& error) {
    metrics_.reset();
    events_.reset();
    options_.warn(concat("the log ends at step ", step, ": ", error.what()));
  }
}

}  // namespace tessera
