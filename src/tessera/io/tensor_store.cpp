#include "tessera/io/tensor_store.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/base/text.h"

namespace tessera {
namespace {

std::string list_of(const std::vector<std::string>& names, std::size_t most) {
  std::vector<std::string> shown(names.begin(),
                                 names.begin() + static_cast<std::ptrdiff_t>(std::min(most, names.size())));
  if (names.size() > most) shown.push_back(concat("and ", names.size() - most, " more"));
  return join(shown, ", ");
}

std::string base_name(const std::string& path) {
  const auto slash = path.find_last_of('/');
  return slash == std::string::npos ? path : path.substr(slash + 1);
}

bool is_counter(const std::string& name) { return name.ends_with(".num_batches_tracked"); }

}  // namespace

TensorStore TensorStore::open(const std::string& path) {
  if (is_folder(path)) {
    for (const char* name : {"model.safetensors.index.json", "model.safetensors"})
      if (is_file(join_path(path, name))) return open(join_path(path, name));
    throw Error(concat(path, " holds neither model.safetensors.index.json nor model.safetensors"));
  }
  return path.ends_with(".index.json") ? of_index(path) : of_file(path);
}

TensorStore TensorStore::of_file(const std::string& path) {
  TensorStore store;
  store.path_ = path;
  store.folder_ = parent_of(path);
  const std::string name = base_name(path);
  const auto file = std::make_shared<SafetensorsFile>(path);
  for (const auto& tensor : file->tensors()) store.file_of_.emplace(tensor.name, name);
  store.opened_.emplace(name, file);
  return store;
}

TensorStore TensorStore::of_index(const std::string& path) {
  TensorStore store;
  store.path_ = path;
  store.folder_ = parent_of(path);
  store.file_of_ = parse_index(read_text(path), path);
  return store;
}

std::vector<std::string> TensorStore::names() const {
  std::vector<std::string> names;
  for (const auto& [name, file] : file_of_) names.push_back(name);
  return names;
}

std::set<std::string> TensorStore::files() const {
  std::set<std::string> files;
  for (const auto& [name, file] : file_of_) files.insert(file);
  return files;
}

const SafetensorsFile& TensorStore::file(const std::string& name) const {
  const auto found = file_of_.find(name);
  if (found == file_of_.end()) throw Error(concat(path_, " has no tensor '", name, "'"));
  auto& file = opened_[found->second];
  if (!file) file = std::make_shared<SafetensorsFile>(join_path(folder_, found->second));
  if (file->find(name) == nullptr)
    throw Error(concat(file->path(), " has no tensor '", name, "', though ", path_, " says so"));
  return *file;
}

const TensorEntry& TensorStore::entry(const std::string& name) const { return *file(name).find(name); }
TensorSpec TensorStore::spec(const std::string& name) const { return file(name).spec(name); }
at::Tensor TensorStore::read(const std::string& name) const { return file(name).read(name); }
void TensorStore::read(const std::string& name, const at::Tensor& into) const { file(name).read(name, into); }

std::vector<TensorSpec> tensor_specs(const Graph& graph) {
  std::vector<TensorSpec> specs;
  for (const auto& [name, spec] : graph.parameters()) specs.push_back({name, spec.stored_sizes()});
  return specs;
}

std::vector<std::string> heads_of(const Graph& graph) {
  std::vector<std::string> heads;
  for (const Value logits : graph.nodes().back().inputs) {
    const Node* node = &graph.node(logits);
    while (node->parameters.empty() && !node->inputs.empty()) node = &graph.node(node->inputs[0]);
    if (!node->parameters.empty()) heads.push_back(node->name);
  }
  return heads;
}

std::string Differences::str(std::size_t most) const {
  std::vector<std::string> lines;
  if (!missing.empty()) lines.push_back(concat(missing.size(), " missing: ", list_of(missing, most)));
  if (!other_shape.empty()) {
    std::vector<std::string> texts;
    for (const auto& o : other_shape)
      texts.push_back(concat(o.name, " is ", shape_text(o.stored), " instead of ", shape_text(o.needed)));
    lines.push_back(concat(texts.size(), " of another shape: ", list_of(texts, most)));
  }
  if (!extra.empty()) lines.push_back(concat(extra.size(), " unknown: ", list_of(extra, most)));
  return join(lines, "\n");
}

Differences compare(const TensorStore& store, const std::vector<TensorSpec>& needed) {
  Differences differences;
  std::set<std::string> known;
  for (const auto& spec : needed) {
    known.insert(spec.name);
    if (!store.has(spec.name))
      differences.missing.push_back(spec.name);
    else if (const auto& stored = store.entry(spec.name); stored.shape != spec.shape)
      differences.other_shape.push_back({spec.name, stored.shape, spec.shape});
  }
  for (const auto& name : store.names())
    if (!known.contains(name)) differences.extra.push_back(name);
  return differences;
}

Import plan_import(const TensorStore& store, const std::vector<TensorSpec>& needed,
                   const std::vector<std::string>& heads) {
  const auto in_head = [&](const std::string& name) {
    return std::ranges::any_of(heads, [&](const std::string& head) { return name.starts_with(head + "."); });
  };
  Differences differences = compare(store, needed);
  Import import;
  // The head goes as a whole: weights for the old classes beside biases for the new ones would be neither.
  const bool new_head = std::ranges::any_of(differences.missing, in_head) ||
                        std::ranges::any_of(differences.other_shape, in_head, &Differences::OtherShape::name);
  std::erase_if(differences.other_shape, [&](const auto& o) { return in_head(o.name); });
  std::erase_if(differences.missing, [&](const std::string& name) {
    if (is_counter(name)) import.counters.push_back(name);
    return is_counter(name) || in_head(name);
  });
  import.extra = std::move(differences.extra);
  if (!differences.missing.empty() || !differences.other_shape.empty()) {
    differences.extra = import.extra;
    throw UsageError(concat("--init-from ", store.path(),
                            " does not fit this network; use the --model that it was made for\n", differences.str()));
  }
  for (const auto& spec : needed) {
    if (new_head && in_head(spec.name))
      import.head.push_back(spec.name);
    else if (store.has(spec.name))
      import.loaded.insert(spec.name);
  }
  import.summary = concat(import.loaded.size(), " tensors from ", store.path());
  if (new_head)
    import.summary +=
        concat("; the head (", join(import.head, ", "), ") is of another size or not there, and starts anew");
  if (!import.counters.empty()) import.summary += concat("; ", import.counters.size(), " batch counters start at 0");
  if (!import.extra.empty())
    import.summary += concat("; ", import.extra.size(), " not needed: ", list_of(import.extra, 8));
  return import;
}

void export_tensors(const TensorStore& store, const std::string& path, const Metadata& metadata,
                    const std::vector<NamedTensor>& more) {
  std::vector<TensorSpec> specs;
  std::map<std::string, at::Tensor> given;
  for (const auto& name : store.names()) specs.push_back(store.spec(name));
  for (const auto& [name, tensor] : more) {
    specs.push_back({name, tensor.sizes().vec(), tensor.scalar_type()});
    given[name] = tensor;
  }
  const std::string temporary = path + ".part";
  SafetensorsWriter writer(temporary, std::move(specs), metadata);
  for (const auto& spec : writer.order())
    writer.add(given.contains(spec.name) ? given.at(spec.name) : store.read(spec.name));
  writer.close();
  rename_path(temporary, path);
  sync_folder(parent_of(path));
}

}  // namespace tessera
