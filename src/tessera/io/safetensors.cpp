#include "tessera/io/safetensors.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <set>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/io/strict_json.h"

namespace tessera {
namespace {

static_assert(std::endian::native == std::endian::little, "tensors are written as they lie in memory");

using Json = nlohmann::json;

constexpr std::int64_t longest_header = 100'000'000;  // as in the reference implementation
constexpr const char* metadata_key = "__metadata__";

struct DtypeName {
  std::string_view name;
  at::ScalarType dtype;
};
constexpr std::array<DtypeName, 10> dtype_names{{{"F64", at::kDouble},
                                                 {"F32", at::kFloat},
                                                 {"F16", at::kHalf},
                                                 {"BF16", at::kBFloat16},
                                                 {"I64", at::kLong},
                                                 {"I32", at::kInt},
                                                 {"I16", at::kShort},
                                                 {"I8", at::kChar},
                                                 {"U8", at::kByte},
                                                 {"BOOL", at::kBool}}};

const DtypeName* find_dtype(std::string_view name) {
  for (const auto& d : dtype_names)
    if (d.name == name) return &d;
  return nullptr;
}

std::string_view name_of(at::ScalarType dtype, const std::string& tensor, const std::string& file) {
  for (const auto& d : dtype_names)
    if (d.dtype == dtype) return d.name;
  throw Error(concat(file, ": the tensor '", tensor, "' is of the data type ", c10::toString(dtype),
                     ", which safetensors files cannot hold"));
}

// Empty dimensions count as 1, so that strides fit into 64 bits, too.
bool size_fits(const std::vector<std::int64_t>& shape, std::int64_t element_bytes) {
  std::int64_t all = element_bytes;
  for (const auto s : shape)
    if (__builtin_mul_overflow(all, std::max<std::int64_t>(1, s), &all)) return false;
  return true;
}

std::int64_t elements_of(const std::vector<std::int64_t>& shape) {
  std::int64_t n = 1;
  for (const auto s : shape) n *= s;
  return n;
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
  const DtypeName* dtype = find_dtype(entry.dtype);
  const auto width = dtype == nullptr ? 1 : static_cast<std::int64_t>(c10::elementSize(dtype->dtype));
  if (!size_fits(entry.shape, width))
    throw Error(concat(where, " has the shape ", shape_text(entry.shape), ": too large"));
  // Of data types that are newer than this program the width is not known; the tensor can be listed, though not read.
  if (dtype != nullptr && elements_of(entry.shape) * width != entry.bytes())
    throw Error(concat(where, " of type ", entry.dtype, " and shape ", shape_text(entry.shape), " has ", entry.bytes(),
                       " bytes instead of ", elements_of(entry.shape) * width));
  return entry;
}

Metadata parse_metadata(const Json& json, const std::string& file) {
  Metadata metadata;
  if (!json.is_object()) throw Error(concat(file, ": ", metadata_key, " is not a JSON object"));
  for (const auto& [key, value] : json.items()) {
    if (!value.is_string()) throw Error(concat(file, ": ", metadata_key, " holds '", key, "', which is not text"));
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

std::string header_text(const std::vector<TensorSpec>& tensors, const Metadata& metadata, const std::string& file) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header[metadata_key] = metadata;
  std::int64_t begin = 0;
  for (const auto& t : tensors) {
    const auto bytes = elements_of(t.shape) * static_cast<std::int64_t>(c10::elementSize(t.dtype));
    header[t.name] = {
        {"dtype", name_of(t.dtype, t.name, file)}, {"shape", t.shape}, {"data_offsets", {begin, begin + bytes}}};
    begin += bytes;
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const Json::exception& error) {
    throw Error(concat("could not write ", file, ": a name is not UTF-8: ", error.what()));
  }
  text.append((8 - text.size() % 8) % 8, ' ');  // so that the tensors are aligned
  return text;
}

std::vector<TensorSpec> in_order(std::vector<TensorSpec> tensors, const std::string& file) {
  std::set<std::string> names{metadata_key};
  for (const auto& t : tensors) {
    name_of(t.dtype, t.name, file);
    ensure(names.insert(t.name).second, file, ": the tensor name '", t.name, "' comes twice or is reserved");
  }
  std::ranges::stable_sort(tensors, std::greater{}, [](const TensorSpec& t) { return c10::elementSize(t.dtype); });
  return tensors;
}

}  // namespace

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::vector<std::string> parts;
  for (const auto s : shape) parts.push_back(std::to_string(s));
  return "[" + join(parts, ", ") + "]";
}

SafetensorsHeader parse_safetensors_header(std::string_view json, std::int64_t data_bytes, const std::string& file) {
  if (!json.starts_with('{')) throw Error(file + " is not a safetensors file: its header does not begin with '{'");
  const Json parsed = parse_object(json, file);
  SafetensorsHeader header;
  for (const auto& [name, value] : parsed.items()) {
    if (name == metadata_key)
      header.metadata = parse_metadata(value, file);
    else
      header.tensors.push_back(parse_entry(name, value, data_bytes, file));
  }
  std::ranges::stable_sort(header.tensors, {}, [](const TensorEntry& t) { return std::pair(t.begin, t.end); });
  check_neither_gaps_nor_overlaps(header.tensors, data_bytes, file);
  return header;
}

SafetensorsFile::SafetensorsFile(std::string path) : file_(std::move(path)) {
  std::uint64_t length = 0;
  if (file_.size() < 8)
    throw Error(concat(file_.path(), " has ", file_.size(), " bytes: too few for a safetensors file"));
  file_.read(0, &length, 8);
  if (length > longest_header)
    throw Error(concat(file_.path(), " is not a safetensors file: its header would have ", length, " bytes, more than ",
                       longest_header));
  data_begin_ = 8 + static_cast<std::int64_t>(length);
  if (data_begin_ > file_.size())
    throw Error(concat(file_.path(), " has ", file_.size(), " bytes, and its header alone ends at ", data_begin_,
                       ": it has been cut off"));
  std::string json(static_cast<std::size_t>(length), '\0');
  file_.read(8, json.data(), json.size());
  header_ = parse_safetensors_header(json, file_.size() - data_begin_, file_.path());
  for (std::size_t i = 0; i < header_.tensors.size(); ++i) index_.emplace(header_.tensors[i].name, i);
}

const TensorEntry* SafetensorsFile::find(const std::string& name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &header_.tensors[found->second];
}

const TensorEntry& SafetensorsFile::entry(const std::string& name) const {
  const TensorEntry* found = find(name);
  if (found == nullptr) throw Error(concat(path(), " has no tensor '", name, "'"));
  return *found;
}

TensorSpec SafetensorsFile::spec(const std::string& name) const {
  const TensorEntry& e = entry(name);
  const DtypeName* dtype = find_dtype(e.dtype);
  if (dtype == nullptr)
    throw Error(concat(path(), ": the tensor '", name, "' is of the data type ", e.dtype, ", which cannot be read"));
  return {name, e.shape, dtype->dtype};
}

at::Tensor SafetensorsFile::read(const std::string& name) const {
  const TensorEntry& e = entry(name);
  at::Tensor tensor = at::empty(e.shape, spec(name).dtype);
  file_.read(data_begin_ + e.begin, tensor.data_ptr(), static_cast<std::size_t>(e.bytes()));
  return tensor;
}

void SafetensorsFile::read(const std::string& name, const at::Tensor& into) const {
  const TensorEntry& e = entry(name);
  if (into.sizes() != at::IntArrayRef(e.shape))
    throw Error(concat(path(), ": the tensor '", name, "' has the shape ", shape_text(e.shape), ", and ",
                       shape_text(into.sizes().vec()), " is needed"));
  const at::Tensor loaded = read(name);
  if (loaded.is_floating_point() != into.is_floating_point() ||
      (loaded.scalar_type() == at::kBool) != (into.scalar_type() == at::kBool))
    throw Error(concat(path(), ": the tensor '", name, "' is of the data type ", e.dtype, ", and ",
                       c10::toString(into.scalar_type()), " is needed"));
  into.detach().copy_(loaded);
}

SafetensorsWriter::SafetensorsWriter(std::string path, std::vector<TensorSpec> tensors, const Metadata& metadata)
    : order_(in_order(std::move(tensors), path)), file_(std::move(path)) {
  const std::string header = header_text(order_, metadata, file_.path());
  if (header.size() > longest_header)
    throw Error(concat("could not write ", file_.path(), ": its header would have ", header.size(),
                       " bytes, more than ", longest_header));
  const std::uint64_t length = header.size();
  file_.write(&length, 8);
  file_.write(header);
}

void SafetensorsWriter::add(const at::Tensor& tensor) {
  ensure(added_ < order_.size(), file_.path(), ": more tensors than were said");
  const TensorSpec& next = order_[added_++];
  ensure(tensor.sizes() == at::IntArrayRef(next.shape) && tensor.scalar_type() == next.dtype, file_.path(), ": '",
         next.name, "' was said to be ", c10::toString(next.dtype), shape_text(next.shape), " and is ",
         c10::toString(tensor.scalar_type()), shape_text(tensor.sizes().vec()));
  const at::Tensor bytes = tensor.detach().cpu().contiguous();
  file_.write(bytes.data_ptr(), static_cast<std::size_t>(bytes.nbytes()));
}

FileSum SafetensorsWriter::close() {
  ensure(added_ == order_.size(), file_.path(), ": ", order_.size() - added_, " tensors were not given");
  return file_.close();
}

FileSum write_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors, const Metadata& metadata) {
  std::vector<TensorSpec> specs;
  std::unordered_map<std::string, const at::Tensor*> by_name;
  for (const auto& t : tensors) {
    specs.push_back({t.name, t.tensor.sizes().vec(), t.tensor.scalar_type()});
    by_name.emplace(t.name, &t.tensor);
  }
  SafetensorsWriter writer(path, std::move(specs), metadata);
  for (const auto& spec : writer.order()) writer.add(*by_name.at(spec.name));
  return writer.close();
}

void write_safetensors_file(const std::string& path, const std::vector<NamedTensor>& tensors,
                            const Metadata& metadata) {
  write_safetensors(path + ".part", tensors, metadata);
  rename_path(path + ".part", path);
  sync_folder(parent_of(path));
}

}  // namespace tessera
