#include "tessera/models/registry.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/models/amoebanet.h"
#include "tessera/models/resnet.h"
#include "tessera/models/unet.h"

namespace tessera {

Graph ModelRegistry::build(const ModelOptions& options) const {
  const auto found = models_.find(options.name);
  const bool file = found == models_.end() && files_ && files_->names_one(options.name);
  if (found == models_.end() && !file) {
    std::vector<std::string> names;
    for (const auto& [name, model] : models_) names.push_back(name);
    throw UsageError(concat("there is no model '", options.name, "'; --model takes ", join(names, ", "),
                            files_ ? ", or a network file of PyTorch (.pt, .pt2)" : ""));
  }
  Problems problems;
  const auto refuse_unused = [&](const char* flag, bool given) {
    static const std::vector<std::string> of_files{"model-output", "init"};
    const auto& uses = file ? of_files : found->second.uses;
    if (given && std::find(uses.begin(), uses.end(), flag) == uses.end())
      problems.add("--", flag, " means nothing to --model ", options.name, "; leave it out");
  };
  refuse_unused("depth", options.depth.has_value());
  refuse_unused("num-layers", options.num_layers.has_value());
  refuse_unused("num-filters", options.num_filters.has_value());
  refuse_unused("upsampling", options.upsampling.has_value());
  refuse_unused("model-output", options.output.has_value());
  refuse_unused("init", options.random_start);
  problems.check(options.classes > 0, "--num-classes ", options.classes, " must be at least 1");
  problems.check(options.image.height > 0 && options.image.width > 0, "--image-size ", options.image.height, "x",
                 options.image.width, " must be at least 1x1");
  Graph graph;
  if (problems.empty())
    problems.absorb([&] {
      graph = file ? files_->build(options) : found->second.build(options);
      if (!options.loss.plain()) graph.set_loss(options.loss);
    });
  problems.throw_if_any();
  return graph;
}

ModelRegistry builtin_models() {
  ModelRegistry registry;
  for (int depth : {18, 34, 50, 101, 152})
    registry.add(concat("resnet", depth), {"residual network with torchvision's parameter names",
                                           {},
                                           [depth](const ModelOptions& options) { return resnet(depth, options); }});
  registry.add("resnet_v1", {"full-resolution residual network, --depth 6n+2 (default 110)", {"depth"}, resnet_v1});
  registry.add("resnet_v2", {"its pre-activation form, --depth 9n+2 (default 110)", {"depth"}, resnet_v2});
  registry.add("amoebanet", {"AmoebaNet-D, --num-layers (default 18) and --num-filters (default 416)",
                             {"num-layers", "num-filters"},
                             amoebanet});
  registry.add("unet", {"a class for every pixel, --num-layers (default 4) and --num-filters (default 64)",
                        {"num-layers", "num-filters", "upsampling"},
                        unet});
  return registry;
}

}  // namespace tessera
