// Comma-separated values, as RFC 4180 has them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

struct CsvRow {
  std::int64_t line;  ///< where it begins, counted from 1
  std::vector<std::string> fields;
};

/// Fields may stand in quotes and then hold commas, line ends and doubled quotes. Lines end in \n or \r\n; blank ones
/// and a byte order mark are skipped. Throws UsageError with `name` and the line for a quote that does not fit.
std::vector<CsvRow> parse_csv(std::string_view text, const std::string& name);

/// A field as it is written: in quotes if it needs them.
std::string csv_field(const std::string& text);

}  // namespace tessera
