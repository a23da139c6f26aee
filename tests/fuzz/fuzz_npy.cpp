// The head of an array of NumPy: its numbers begin within what was looked at, and its size is one that can be.
#include "fuzz/fuzz.h"
#include "tessera/data/npy_format.h"

void tessera::fuzz(std::string_view file) {
  const NpyHeader header = parse_npy(std::string(file));
  must(header.data >= 10 && header.data <= static_cast<std::int64_t>(file.size()));
  must(header.elements() >= 0);
  for (const std::int64_t side : header.shape) must(side >= 0);
}
