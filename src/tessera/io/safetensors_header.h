// The header of a safetensors file, which may be damaged or hostile. Knows no torch.
//
//   8 bytes   N, length of the header, little-endian
//   N bytes   JSON: {"__metadata__": {text: text}, "name": {"dtype": "F32", "shape": [..], "data_offsets": [from, to]}}
//   the rest  the tensors' bytes, row-major; offsets count from here, and leave neither gaps nor overlaps
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

inline constexpr std::int64_t longest_safetensors_header = 100'000'000;  ///< as in the reference implementation
inline constexpr const char* safetensors_metadata_key = "__metadata__";

using Metadata = std::map<std::string, std::string>;

/// What the header says of a tensor.
struct TensorEntry {
  std::string name;
  std::string dtype;  ///< as the file has it: "F32"; not every one can be read
  std::vector<std::int64_t> shape;
  std::int64_t begin = 0, end = 0;  ///< of its bytes, after the header
  std::int64_t bytes() const { return end - begin; }
};

/// Precondition: the product fits into 64 bits, as it does in every parsed header.
std::int64_t elements_of(const std::vector<std::int64_t>& shape);
/// "[64, 3, 7, 7]"
std::string shape_text(const std::vector<std::int64_t>& shape);

struct SafetensorsHeader {
  std::vector<TensorEntry> tensors;  ///< in the order of their bytes
  Metadata metadata;
};
/// How many bytes the header has, by the first eight bytes of a file. Throws Error if that cannot be.
std::int64_t safetensors_header_bytes(std::uint64_t first, std::int64_t file_bytes, const std::string& file);
/// Checks everything that can be checked without the tensors' bytes, of which there are `data_bytes`. `file` is for the
/// messages. Throws Error.
SafetensorsHeader parse_safetensors_header(std::string_view json, std::int64_t data_bytes, const std::string& file);

}  // namespace tessera
