#include "tessera/io/safetensors_header.h"

#include <algorithm>
#include <optional>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/io/strict_json.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

// Unset: a data type that this program does not know.
std::optional<std::int64_t> element_bytes(std::string_view dtype) {
  if (dtype == "F64" || dtype == "I64") return 8;
  if (dtype == "F32" || dtype == "I32") return 4;
  if (dtype == "F16" || dtype == "BF16" || dtype == "I16") return 2;
  if (dtype == "I8" || dtype == "U8" || dtype == "BOOL") return 1;
  return std::nullopt;
}

// Empty dimensions count as 1, so that strides fit into 64 bits, too.
bool size_fits(const std::vector<std::int64_t>& shape, std::int64_t width) {
  std::int64_t all = width;
  for (const auto s : shape)
    if (__builtin_mul_overflow(all, std::max<std::int64_t>(1, s), &all)) return false;
  return true;
}

std::vector<std::int64_t> whole_numbers(const Json& object, const char* key, const std::string& where) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_array()) throw Error(concat(where, " has no list \"", key, "\""));
  std::vector<std::int64_t> numbers;
  for (const auto& value : *found) {
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() > INT64_MAX)
      throw Error(concat(where, ": \"", key, "\" holds something that is no whole number from 0 on"));
    numbers.push_back(value.get<std::int64_t>());
  }
  return numbers;
}

TensorEntry parse_entry(const std::string& name, const Json& json, std::int64_t data_bytes, const std::string& file) {
  const std::string where = concat(file, ": the tensor '", name, "'");
  if (!json.is_object()) throw Error(where + " is not described by a JSON object");
  TensorEntry entry{.name = name, .dtype = field<std::string>(json, "dtype", where)};
  entry.shape = whole_numbers(json, "shape", where);
  const auto offsets = whole_numbers(json, "data_offsets", where);
  if (offsets.size() != 2 || offsets[0] > offsets[1] || offsets[1] > data_bytes)
    throw Error(
        concat(where, " has data_offsets ", shape_text(offsets), "; the file has ", data_bytes, " bytes of tensors"));
  entry.begin = offsets[0];
  entry.end = offsets[1];
  const auto known = element_bytes(entry.dtype);
  const std::int64_t width = known.value_or(1);
  if (!size_fits(entry.shape, width))
    throw Error(concat(where, " has the shape ", shape_text(entry.shape), ": too large"));
  // Of data types that are newer than this program the width is not known; the tensor can be listed, though not read.
  if (known && elements_of(entry.shape) * width != entry.bytes())
    throw Error(concat(where, " of type ", entry.dtype, " and shape ", shape_text(entry.shape), " has ", entry.bytes(),
                       " bytes instead of ", elements_of(entry.shape) * width));
  return entry;
}

Metadata parse_metadata(const Json& json, const std::string& file) {
  Metadata metadata;
  if (!json.is_object()) throw Error(concat(file, ": ", safetensors_metadata_key, " is not a JSON object"));
  for (const auto& [key, value] : json.items()) {
    if (!value.is_string())
      throw Error(concat(file, ": ", safetensors_metadata_key, " holds '", key, "', which is not text"));
    metadata[key] = value.get<std::string>();
  }
  return metadata;
}

void check_neither_gaps_nor_overlaps(const std::vector<TensorEntry>& sorted, std::int64_t data_bytes,
                                     const std::string& file) {
  std::int64_t end = 0;
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    const auto& t = sorted[i];
    if (t.begin < end)
      throw Error(
          concat(file, ": the tensors '", sorted[i - 1].name, "' and '", t.name, "' overlap at byte ", t.begin));
    if (t.begin > end)
      throw Error(concat(file, ": ", t.begin - end, " bytes before the tensor '", t.name, "' belong to no tensor"));
    end = t.end;
  }
  if (end != data_bytes)
    throw Error(
        concat(file, ": its tensors have ", end, " bytes, and the file holds ", data_bytes, " after the header"));
}

}  // namespace

std::int64_t elements_of(const std::vector<std::int64_t>& shape) {
  std::int64_t n = 1;
  for (const auto s : shape) n *= s;
  return n;
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::vector<std::string> parts;
  for (const auto s : shape) parts.push_back(std::to_string(s));
  return "[" + join(parts, ", ") + "]";
}

std::int64_t safetensors_header_bytes(std::uint64_t first, std::int64_t file_bytes, const std::string& file) {
  if (file_bytes < 8) throw Error(concat(file, " has ", file_bytes, " bytes: too few for a safetensors file"));
  const bool too_long = first > static_cast<std::uint64_t>(longest_safetensors_header);
  // What torch.save() writes: a zip file, or in older versions a bare pickle of protocol 2 to 5. A header of 640 bytes
  // begins like a pickle, too, but no header is as long as what follows in one.
  const bool zip = (first & 0xffffffff) == 0x04034b50;
  const bool pickle = (first & 0xff) == 0x80 && (first >> 8 & 0xff) >= 2 && (first >> 8 & 0xff) <= 5;
  if (too_long && (zip || pickle))
    throw Error(concat(file,
                       " is a PyTorch checkpoint (a pickle), which can run code when it is opened; convert it in ",
                       "Python: from safetensors.torch import save_file; save_file(torch.load('", file,
                       "', weights_only=True), 'weights.safetensors')"));
  if (too_long)
    throw Error(concat(file, " is not a safetensors file: its header would have ", first, " bytes, more than ",
                       longest_safetensors_header));
  const auto bytes = static_cast<std::int64_t>(first);
  if (8 + bytes > file_bytes)
    throw Error(
        concat(file, " has ", file_bytes, " bytes, and its header alone ends at ", 8 + bytes, ": it has been cut off"));
  return bytes;
}

SafetensorsHeader parse_safetensors_header(std::string_view json, std::int64_t data_bytes, const std::string& file) {
  if (!json.starts_with('{')) throw Error(file + " is not a safetensors file: its header does not begin with '{'");
  const Json parsed = parse_object(json, file);
  SafetensorsHeader header;
  for (const auto& [name, value] : parsed.items()) {
    if (name == safetensors_metadata_key)
      header.metadata = parse_metadata(value, file);
    else
      header.tensors.push_back(parse_entry(name, value, data_bytes, file));
  }
  std::ranges::stable_sort(header.tensors, {}, [](const TensorEntry& t) { return std::pair(t.begin, t.end); });
  check_neither_gaps_nor_overlaps(header.tensors, data_bytes, file);
  return header;
}

}  // namespace tessera
