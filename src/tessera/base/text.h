// Small text helpers for messages and tables.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

/// "1.50 GiB", "512 B".
std::string human_bytes(std::int64_t bytes);
/// "21.4 G", "3.20 M": decimal multiples, for counts.
std::string human_count(double count);
/// "1:02:03" or "2:03".
std::string human_seconds(double seconds);
/// "1 step", "2 steps", "2 classes".
std::string counted(std::int64_t count, const std::string& noun);
std::string join(const std::vector<std::string>& parts, const std::string& separator);

/// A table with aligned columns; cells that look like numbers are right-aligned.
class Table {
 public:
  explicit Table(std::vector<std::string> header) : rows_{std::move(header)} {}
  void row(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  std::string str() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace tessera
