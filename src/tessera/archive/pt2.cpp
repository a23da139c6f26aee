#include "tessera/archive/pt2.h"

#include <ATen/ops/empty.h>
#include <caffe2/serialize/inline_container.h>

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tessera/archive/interpreter.h"
#include "tessera/archive/pickled_tensors.h"
#include "tessera/archive/pt2_graph.h"
#include "tessera/archive/stored.h"
#include "tessera/archive/stored_zip.h"
#include "tessera/base/error.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

constexpr const char* old_graph = "serialized_exported_program.json";

// The numbers that torch.export has for data types.
at::ScalarType dtype_of(int number) {
  switch (number) {
    case 1:
      return at::kByte;
    case 4:
      return at::kInt;
    case 5:
      return at::kLong;
    case 6:
      return at::kHalf;
    case 7:
      return at::kFloat;
    case 8:
      return at::kDouble;
    case 12:
      return at::kBool;
    case 13:
      return at::kBFloat16;
    default:
      throw Error(concat("a tensor of data type ", number));
  }
}

// The names that torch.save has for them.
at::ScalarType dtype_of(const std::string& storage) {
  static const std::map<std::string, at::ScalarType> types{
      {"ByteStorage", at::kByte}, {"IntStorage", at::kInt},          {"LongStorage", at::kLong},
      {"HalfStorage", at::kHalf}, {"FloatStorage", at::kFloat},      {"DoubleStorage", at::kDouble},
      {"BoolStorage", at::kBool}, {"BFloat16Storage", at::kBFloat16}};
  const auto found = types.find(storage);
  if (found == types.end()) throw Error(concat("a tensor of data type ", storage));
  return found->second;
}

class Pt2File final : public NetworkFile {
 public:
  explicit Pt2File(const std::string& path) {
    if (is_old_pt2(path)) {
      std::ostringstream file;
      file << std::ifstream(path, std::ios::binary).rdbuf();
      const std::string bytes = std::move(file).str();
      const StoredZip zip(bytes);
      graph_ = parse_pt2_graph(zip.at(old_graph));
      read_pickled(zip.at("serialized_state_dict.pt"));
      read_pickled(zip.at("serialized_constants.pt"));
    } else {
      Reader reader(path);
      graph_ = parse_pt2_graph(text(reader, "models/model.json"));
      for (const auto& [folder, config] : {std::pair{"data/weights/", "model_weights_config.json"},
                                           std::pair{"data/constants/", "model_constants_config.json"}}) {
        read_tensors(reader, folder, config);
        if (const std::string all = concat(folder, "model.pt"); reader.hasRecord(all)) read_pickled(text(reader, all));
      }
    }
    for (const auto& [name, node] : graph_.weights) {
      if (!tensors_.contains(name)) throw Error(concat("it has no tensor '", name, "'"));
      const StoredTensor& stored = graph_.program.add(stored_tensor(name, tensors_.at(name), graph_.trained.at(name)));
      graph_.program.body.nodes.at(node).constant = StoredRef{&stored, stored.sizes};
    }
  }

  const ForeignProgram& program() const override { return graph_.program; }
  std::unique_ptr<ForeignNetwork> network(const at::TensorOptions& options) const override {
    return interpreted(graph_.program, tensors_, options);
  }
  at::Tensor tensor(const std::string& name) const override {
    const auto found = tensors_.find(name);
    return found == tensors_.end() ? at::Tensor() : found->second;
  }
  std::string kind() const override { return "torch.export"; }

 private:
  using Reader = caffe2::serialize::PyTorchStreamReader;

  static std::string text(Reader& reader, const std::string& record) {
    const auto [data, size] = reader.getRecord(record);
    return {static_cast<const char*>(data.get()), size};
  }

  // torch 2.8 and before: all tensors of a kind in a file of torch.save, which may be nothing.
  void read_pickled(std::string_view file) {
    if (file.empty()) return;
    const StoredZip zip(file);
    for (const auto& [name, t] : read_pickled_tensors(zip.ending("/data.pkl"))) {
      tensors_[name] =
          read(zip.ending(concat("/data/", t.storage)), dtype_of(t.type), t.sizes, t.strides, t.offset, name);
      if (t.requires_grad) graph_.trained[name] = *t.requires_grad;
    }
  }

  void read_tensors(Reader& reader, const std::string& folder, const std::string& config) {
    if (!reader.hasRecord(folder + config)) return;
    const Json json = Json::parse(text(reader, folder + config));
    for (const auto& [name, entry] : json.at("config").items()) {
      const Json& meta = entry.at("tensor_meta");
      if (entry.value("use_pickle", false)) throw Error(concat("its tensor '", name, "' is pickled"));
      std::vector<std::int64_t> sizes, strides;
      for (const auto& s : meta.at("sizes")) sizes.push_back(s.at("as_int").get<std::int64_t>());
      for (const auto& s : meta.at("strides")) strides.push_back(s.at("as_int").get<std::int64_t>());
      const auto offset = meta.at("storage_offset").at("as_int").get<std::int64_t>();
      tensors_[name] = read(text(reader, folder + entry.at("path_name").get<std::string>()),
                            dtype_of(meta.at("dtype").get<int>()), sizes, strides, offset, name);
    }
  }

  static at::Tensor read(std::string_view bytes, at::ScalarType dtype, const std::vector<std::int64_t>& sizes,
                         const std::vector<std::int64_t>& strides, std::int64_t offset, const std::string& name) {
    const auto width = static_cast<std::int64_t>(c10::elementSize(dtype));
    const at::Tensor flat = at::empty({static_cast<std::int64_t>(bytes.size()) / width}, dtype);
    std::memcpy(flat.data_ptr(), bytes.data(), static_cast<std::size_t>(flat.numel() * width));
    if (!fits(sizes, strides, offset, flat.numel()))
      throw Error(concat("its tensor '", name, "' is larger than its record"));
    return flat.as_strided(sizes, strides, offset).clone();
  }

  Pt2Graph graph_;
  std::map<std::string, at::Tensor> tensors_;
};

}  // namespace

bool is_old_pt2(const std::string& path) {
  constexpr std::size_t before_name = 30;  // in a zip file's first record
  std::string head(before_name + std::string_view(old_graph).size(), ' ');
  std::ifstream(path, std::ios::binary).read(head.data(), static_cast<std::streamsize>(head.size()));
  return head.starts_with("PK") && head.ends_with(old_graph);
}

std::shared_ptr<const NetworkFile> open_pt2(const std::string& path) {
  try {
    return std::make_shared<Pt2File>(path);
  } catch (const UsageError&) {
    throw;
  } catch (const std::exception& error) {
    const std::string words = error.what();
    throw UsageError(concat("--model ", path, " cannot be read: ", words.substr(0, words.find('\n'))));
  }
}

}  // namespace tessera
