// A safetensors file: what its header says must lie inside of it.
#include <cstring>

#include "fuzz/fuzz.h"
#include "tessera/io/safetensors_header.h"

void tessera::fuzz(std::string_view file) {
  std::uint64_t first = 0;
  if (file.size() >= 8) std::memcpy(&first, file.data(), 8);
  const auto bytes = static_cast<std::int64_t>(file.size());
  const std::int64_t length = safetensors_header_bytes(first, bytes, "file");
  const std::int64_t data_bytes = bytes - 8 - length;
  const auto header = parse_safetensors_header(file.substr(8, static_cast<std::size_t>(length)), data_bytes, "file");
  std::int64_t sum = 0;
  for (const auto& tensor : header.tensors) {
    must(0 <= tensor.begin && tensor.begin <= tensor.end && tensor.end <= data_bytes);
    must(elements_of(tensor.shape) >= 0);
    sum += tensor.bytes();
  }
  must(sum == data_bytes);
}
