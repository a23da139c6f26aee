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

std::string header_text(const std::vector<TensorSpec>& tensors, const Metadata& metadata, const std::string& file) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header[safetensors_metadata_key] = metadata;
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
  std::set<std::string> names{safetensors_metadata_key};
  for (const auto& t : tensors) {
    name_of(t.dtype, t.name, file);
    ensure(names.insert(t.name).second, file, ": the tensor name '", t.name, "' comes twice or is reserved");
  }
  std::ranges::stable_sort(tensors, std::greater{}, [](const TensorSpec& t) { return c10::elementSize(t.dtype); });
  return tensors;
}

}  // namespace

SafetensorsFile::SafetensorsFile(std::string path) : file_(std::move(path)) {
  std::uint64_t first = 0;
  if (file_.size() >= 8) file_.read(0, &first, 8);
  const std::int64_t length = safetensors_header_bytes(first, file_.size(), file_.path());
  data_begin_ = 8 + length;
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
  if (static_cast<std::int64_t>(header.size()) > longest_safetensors_header)
    throw Error(concat("could not write ", file_.path(), ": its header would have ", header.size(),
                       " bytes, more than ", longest_safetensors_header));
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
