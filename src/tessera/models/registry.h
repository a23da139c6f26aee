// Which networks there are, by name. A user's own network joins the built-in ones and gets every flag of the program.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tessera/graph/graph.h"

namespace tessera {

/// What the program's flags say about the network. Unset: the network's own default.
struct ModelOptions {
  std::string name = "resnet50";
  Shape image{3, 224, 224};
  std::int64_t classes = 1000;
  std::optional<std::int64_t> depth;        ///< --depth: resnet_v1, resnet_v2
  std::optional<std::int64_t> num_layers;   ///< --num-layers: amoebanet, unet
  std::optional<std::int64_t> num_filters;  ///< --num-filters: amoebanet, unet
  std::optional<std::string> upsampling;    ///< --upsampling: unet; transposed or bilinear
  LossOptions loss;                         ///< --label-smoothing, --class-weights, --auxiliary-weight
  // Of networks that are read from files.
  std::optional<std::string> output;  ///< --model-output: of several, the one that is trained
  bool random_start = false;          ///< --init random: not with the file's weights
};

using ModelBuilder = std::function<Graph(const ModelOptions&)>;

struct Model {
  std::string help;               ///< one line for --help
  std::vector<std::string> uses;  ///< which of depth, num-layers, num-filters, upsampling it takes
  ModelBuilder build;
};

/// What builds a network where --model names a file.
struct ModelFiles {
  std::function<bool(const std::string&)> names_one;
  ModelBuilder build;
};

class ModelRegistry {
 public:
  void take_files(ModelFiles files) { files_ = std::move(files); }
  void add(std::string name, Model model) { models_.insert_or_assign(std::move(name), std::move(model)); }
  /// Throws UsageError for an unknown name (with the known ones), for options that the model does not take, and for
  /// whatever the builder refuses.
  Graph build(const ModelOptions& options) const;
  const std::map<std::string, Model>& models() const { return models_; }

 private:
  std::map<std::string, Model> models_;
  std::optional<ModelFiles> files_;
};

/// resnet18/34/50/101/152, resnet_v1, resnet_v2, amoebanet, unet.
ModelRegistry builtin_models();

}  // namespace tessera
