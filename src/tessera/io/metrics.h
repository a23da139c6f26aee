// What a run tells while it goes on: metrics.jsonl, a line of JSON a step, and event files that TensorBoard shows.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "tessera/io/file.h"

namespace tessera {

struct Metric {
  std::string name;  ///< "train/loss": TensorBoard groups by what stands before the slash
  std::variant<double, std::int64_t, std::string> value;
};

/// Seconds since 1970.
double wall_clock();

/// One JSON object a line: {"step": 12, "time": 1700000000.5, name: value, ...}. Numbers that are not finite become
/// null. Every line has been handed to the system when write() returns, so it outlives a killed process.
class MetricsFile {
 public:
  /// Appends. Lines of steps from `first_step` on, which a resumed run will write again, are dropped, and so is a last
  /// line that a killed run left unfinished.
  explicit MetricsFile(std::string path, std::optional<std::int64_t> first_step = std::nullopt);
  void write(std::int64_t step, const std::vector<Metric>& metrics, double time = wall_clock());

 private:
  AppendFile file_;
};

}  // namespace tessera
