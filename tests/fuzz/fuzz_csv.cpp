// A table of comma-separated values: rows come in the order of their lines, with no more of text than there was.
#include "fuzz/fuzz.h"
#include "tessera/data/csv.h"

void tessera::fuzz(std::string_view file) {
  std::int64_t line = 0;
  std::size_t bytes = 0;
  for (const auto& row : parse_csv(file, "table")) {
    must(row.line > line && !row.fields.empty());
    line = row.line;
    for (const auto& field : row.fields) bytes += field.size();
  }
  must(bytes <= file.size());
}
