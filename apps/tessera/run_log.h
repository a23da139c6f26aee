// The logs of a run in --log-dir: metrics.jsonl, TensorBoard's event files, and what the report is made from.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tessera/io/event_file.h"
#include "tessera/io/metrics.h"
#include "tessera/runtime/trainer.h"

namespace tessera {

struct RunLogOptions {
  std::string dir;          ///< empty: no logs
  std::int64_t start = 0;   ///< steps that are done; later ones that a stopped run has put down are dropped
  bool resumed = false;     ///< the folder's log is that of this run
  std::int64_t batch_size;  ///< images per step
  std::function<void(const std::string&)> warn;
};

/// Throws UsageError if the folder cannot be written to, or holds the log of another run.
void check_log_dir(const std::string& dir, bool resumed);

/// One per run. A log that cannot be written any more is a warning, and the end of the log, not of the run.
class RunLog {
 public:
  explicit RunLog(RunLogOptions options);
  void step(const StepReport& report, std::int64_t peak_bytes);
  /// Any other numbers, of a step counted from 1.
  void write(std::int64_t step, const std::vector<Metric>& metrics);
  /// A document beside them: `write` gets its path.
  void document(const std::string& name, const std::function<void(const std::string& path)>& write);

 private:
  const RunLogOptions options_;
  std::optional<MetricsFile> metrics_;
  std::optional<EventFile> events_;
};

}  // namespace tessera
