#include "tessera/base/text.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>

namespace tessera {
namespace {

std::string format(const char* pattern, double value, const char* unit) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, pattern, value, unit);
  return buffer;
}

std::string scaled(double value, double base, const std::vector<const char*>& units) {
  std::size_t unit = 0;
  while (std::abs(value) >= base && unit + 1 < units.size()) value /= base, ++unit;
  return format(unit == 0 ? "%.0f %s" : value < 10 ? "%.2f %s" : "%.1f %s", value, units[unit]);
}

bool numeric(const std::string& cell) {
  return !cell.empty() && (std::isdigit(static_cast<unsigned char>(cell[0])) || cell[0] == '-' || cell[0] == '.');
}

// Counts characters, not bytes: continuation bytes of UTF-8 take no column.
std::size_t width_of(const std::string& cell) {
  return static_cast<std::size_t>(
      std::count_if(cell.begin(), cell.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

}  // namespace

std::string human_bytes(std::int64_t bytes) {
  return scaled(static_cast<double>(bytes), 1024.0, {"B", "KiB", "MiB", "GiB", "TiB", "PiB"});
}

std::string human_count(double count) {
  std::string text = scaled(count, 1000.0, {"", "k", "M", "G", "T", "P"});
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return text;
}

std::string human_seconds(double seconds) {
  const auto total = static_cast<long long>(std::llround(std::max(0.0, seconds)));
  char buffer[64];
  if (total >= 3600)
    std::snprintf(buffer, sizeof buffer, "%lld:%02lld:%02lld", total / 3600, total / 60 % 60, total % 60);
  else
    std::snprintf(buffer, sizeof buffer, "%lld:%02lld", total / 60, total % 60);
  return buffer;
}

std::string counted(std::int64_t count, const std::string& noun) {
  const char* ending = count == 1 ? "" : noun.back() == 's' ? "es" : "s";
  return std::to_string(count) + " " + noun + ending;
}

std::string join(const std::vector<std::string>& parts, const std::string& separator) {
  std::string out;
  for (std::size_t i = 0; i < parts.size(); ++i) out += (i ? separator : "") + parts[i];
  return out;
}

std::string Table::str() const {
  std::vector<std::size_t> widths;
  for (const auto& row : rows_)
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (i == widths.size()) widths.push_back(0);
      widths[i] = std::max(widths[i], width_of(row[i]));
    }
  std::string out;
  for (std::size_t r = 0; r < rows_.size(); ++r) {
    std::string line;
    for (std::size_t i = 0; i < rows_[r].size(); ++i) {
      const auto& cell = rows_[r][i];
      const std::string fill(widths[i] - width_of(cell), ' ');
      // A heading stands on the side of its column's numbers.
      const bool right = numeric(r > 0 ? cell : rows_.size() > 1 && i < rows_[1].size() ? rows_[1][i] : cell);
      line += (i ? "  " : "") + (right ? fill + cell : cell + fill);
    }
    while (!line.empty() && line.back() == ' ') line.pop_back();
    out += line + "\n";
    if (r == 0) {
      std::size_t total = 0;
      for (auto w : widths) total += w + 2;
      out += std::string(total - 2, '-') + "\n";
    }
  }
  return out;
}

}  // namespace tessera
