#include "tessera/archive/pt2.h"

#include <ATen/ops/empty.h>
#include <caffe2/serialize/inline_container.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "tessera/archive/interpreter.h"
#include "tessera/archive/pt2_graph.h"
#include "tessera/archive/stored.h"
#include "tessera/base/error.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

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

class Pt2File final : public NetworkFile {
 public:
  explicit Pt2File(const std::string& path) : reader_(path) {
    graph_ = parse_pt2_graph(text("models/model.json"));
    read_tensors("data/weights/", "model_weights_config.json");
    read_tensors("data/constants/", "model_constants_config.json");
    for (const auto& [name, node] : graph_.weights) {
      const auto found = trained_.find(name);
      if (found == trained_.end()) throw Error(concat("it has no tensor '", name, "'"));
      const StoredTensor& stored = graph_.program.add(stored_tensor(name, tensors_.at(name), found->second));
      graph_.program.body.nodes.at(node).constant = StoredRef{&stored, stored.sizes};
    }
  }

  const ForeignProgram& program() const override { return graph_.program; }
  std::unique_ptr<ForeignNetwork> network(at::ScalarType dtype) const override {
    return interpreted(graph_.program, tensors_, dtype);
  }
  at::Tensor tensor(const std::string& name) const override {
    const auto found = tensors_.find(name);
    return found == tensors_.end() ? at::Tensor() : found->second;
  }
  std::string kind() const override { return "torch.export"; }

 private:
  std::string text(const std::string& record) {
    const auto [data, size] = reader_.getRecord(record);
    return {static_cast<const char*>(data.get()), size};
  }

  void read_tensors(const std::string& folder, const std::string& config) {
    const auto records = reader_.getAllRecords();
    if (std::find(records.begin(), records.end(), folder + config) == records.end()) return;
    const Json json = Json::parse(text(folder + config));
    for (const auto& [name, entry] : json.at("config").items()) {
      const Json& meta = entry.at("tensor_meta");
      if (entry.value("use_pickle", false)) throw Error(concat("its tensor '", name, "' is pickled"));
      std::vector<std::int64_t> sizes, strides;
      for (const auto& s : meta.at("sizes")) sizes.push_back(s.at("as_int").get<std::int64_t>());
      for (const auto& s : meta.at("strides")) strides.push_back(s.at("as_int").get<std::int64_t>());
      const auto offset = meta.at("storage_offset").at("as_int").get<std::int64_t>();
      tensors_[name] = read(folder + entry.at("path_name").get<std::string>(), dtype_of(meta.at("dtype").get<int>()),
                            sizes, strides, offset, name);
      trained_[name] = entry.value("is_param", false) && meta.value("requires_grad", false);
    }
  }

  at::Tensor read(const std::string& record, at::ScalarType dtype, const std::vector<std::int64_t>& sizes,
                  const std::vector<std::int64_t>& strides, std::int64_t offset, const std::string& name) {
    const auto [data, bytes] = reader_.getRecord(record);
    const auto width = static_cast<std::int64_t>(c10::elementSize(dtype));
    at::Tensor flat = at::empty({static_cast<std::int64_t>(bytes) / width}, dtype);
    std::memcpy(flat.data_ptr(), data.get(), static_cast<std::size_t>(flat.numel() * width));
    // Nothing outside of what the record holds.
    std::int64_t last = offset;
    bool fits = sizes.size() == strides.size() && offset >= 0, empty = false;
    for (std::size_t i = 0; fits && i < sizes.size(); ++i) {
      fits = sizes[i] >= 0 && strides[i] >= 0 && (strides[i] == 0 || sizes[i] <= flat.numel() / strides[i] + 1);
      empty = empty || sizes[i] == 0;
      last += fits ? (sizes[i] - 1) * strides[i] : 0;
    }
    if (!fits || (!empty && last >= flat.numel()))
      throw Error(concat("its tensor '", name, "' is larger than its record"));
    return flat.as_strided(sizes, strides, offset).clone();
  }

  caffe2::serialize::PyTorchStreamReader reader_;
  Pt2Graph graph_;
  std::map<std::string, at::Tensor> tensors_;
  std::map<std::string, bool> trained_;
};

}  // namespace

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
