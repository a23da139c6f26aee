#include "network.h"

#include <algorithm>
#include <array>

#include "tessera/base/error.h"
#include "tessera/io/file.h"

namespace tessera {

std::shared_ptr<const ForeignModule> ForeignModel::reference() const {
  auto out = std::make_shared<ForeignModule>();
  out->open = [from = file](const at::TensorOptions& options) { return from->network(options); };
  const auto add = [&](const std::string& name) {
    out->outputs.push_back(
        static_cast<std::size_t>(std::ranges::find(network.outputs, name) - network.outputs.begin()));
  };
  add(network.trained);
  for (const auto& name : network.auxiliary) add(name);
  out->dropouts = network.dropouts;
  return out;
}

ForeignModel NetworkFiles::look(const ModelOptions& o) {
  auto& file = opened_[o.name];
  if (!file) file = open_network(o.name);
  const ImportOptions options{.image = o.image,
                              .output = o.output.value_or(""),
                              .auxiliary = o.loss.auxiliary > 0,
                              .random_start = o.random_start};
  try {
    return {file, import_network(file->program(), options)};
  } catch (const UsageError& error) {
    throw UsageError(concat("--model ", o.name, ": ", error.what()));
  }
}

ForeignModel NetworkFiles::import(const ModelOptions& o) {
  ForeignModel model = look(o);
  require(model.network.unsupported.empty(), "--model ", o.name, " has what is not supported:\n",
          text_of(model.network.unsupported));
  return model;
}

bool is_network_file(const ModelRegistry& models, const std::string& model) {
  return !models.models().contains(model) && names_network_file(model);
}

ModelRegistry with_files(const ModelRegistry& models, const std::shared_ptr<NetworkFiles>& files) {
  ModelRegistry out = models;
  out.take_files({names_network_file, [files](const ModelOptions& o) { return files->import(o).network.graph; }});
  return out;
}

std::string network_copy(const std::string& dir, const std::string& file) {
  return join_path(dir, file.ends_with(".pt2") ? "network.pt2" : "network.pt");
}

std::string find_network_copy(const std::string& weights, const std::string& file) {
  std::string folder = weights;
  for (int i = 0; i < 3 && !folder.empty(); ++i, folder = parent_of(folder))
    if (const std::string copy = network_copy(folder, file); is_file(copy)) return copy;
  return {};
}

void keep_network(const std::string& dir, const std::string& file) {
  const std::string to = network_copy(dir, file);
  if (is_file(to)) return;
  const InputFile from(file);
  OutputFile out(to + ".part");
  std::array<char, 1 << 16> buffer{};
  for (std::int64_t at = 0; at < from.size();) {
    const auto bytes = std::min<std::int64_t>(static_cast<std::int64_t>(buffer.size()), from.size() - at);
    from.read(at, buffer.data(), static_cast<std::size_t>(bytes));
    out.write(buffer.data(), static_cast<std::size_t>(bytes));
    at += bytes;
  }
  out.close();
  rename_path(to + ".part", to);
}

}  // namespace tessera
