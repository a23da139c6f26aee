#include "tessera/graph/operations/norm.h"

#include "tessera/base/error.h"

namespace tessera {
namespace {

using Kind = Initializer::Kind;

// Norms compute with what they are kept in, whatever the activations are.
ParameterSpec spec(std::string suffix, std::vector<std::int64_t> sizes, double start) {
  return {.suffix = std::move(suffix), .sizes = std::move(sizes), .init = {Kind::constant, start}, .wide = true};
}

}  // namespace

Norm::Norm(const BatchNormOptions& o)
    : norm{.statistics = o.frozen ? StatisticsOf::running : StatisticsOf::micro,
           .epsilon = o.epsilon,
           .momentum = o.momentum,
           .affine = o.affine},
      kind_("batch_norm") {
  require(o.momentum >= 0 && o.momentum <= 1, "batch norm with a momentum of ", o.momentum, ": from 0 to 1 is allowed");
}

Norm::Norm(const GroupNormOptions& o)
    : norm{.statistics = StatisticsOf::sample, .groups = o.groups, .epsilon = o.epsilon, .affine = o.affine},
      kind_("group_norm") {
  require(o.groups > 0, "group norm of ", o.groups, " groups");
}

Norm::Norm(const InstanceNormOptions& o)
    : norm{.statistics = StatisticsOf::sample, .epsilon = o.epsilon, .affine = o.affine}, kind_("instance_norm") {}

Norm::Norm(const ScaleOptions& o) : norm{.statistics = StatisticsOf::nothing}, scale(o), kind_("scale") {}

Shape Norm::output_shape(Shapes inputs) const {
  require(norm.groups == 0 || inputs[0].channels % norm.groups == 0, "group norm of ", inputs[0].channels,
          " channels in ", norm.groups, " groups: the channels must be a multiple of the groups");
  return inputs[0];
}

std::vector<ParameterSpec> Norm::parameters(Shapes inputs) const {
  const std::vector<std::int64_t> sizes{inputs[0].channels};
  if (norm.statistics == StatisticsOf::nothing) return {spec(scale.suffix, {inputs[0].channels, 1, 1}, scale.start)};
  std::vector<ParameterSpec> out;
  if (norm.affine) out = {spec("weight", sizes, 1), spec("bias", sizes, 0)};
  if (!norm.has_running()) return out;
  for (const auto& [suffix, start] : {std::pair{"running_mean", 0.0}, std::pair{"running_var", 1.0}}) {
    ParameterSpec running = spec(suffix, sizes, start);
    running.trainable = false;
    if (norm.live()) running.decay = 1 - norm.momentum;
    out.push_back(std::move(running));
  }
  ParameterSpec counter = spec("num_batches_tracked", {}, 0);
  counter.trainable = false;
  out.push_back(std::move(counter));
  return out;
}

Cost Norm::cost(Shapes inputs, const Box& out) const {
  const double n = static_cast<double>(out.volume() * inputs[0].channels);
  if (!norm.live()) return {2 * n, 2 * n, 0, 2 * n};
  return {6 * n, 8 * n, 0, 3 * n};  // read for the statistics, read again and written to normalise
}

Agreement Norm::agreement() const {
  return !norm.live() ? Agreement::none : norm.by_sample() ? Agreement::tiles : Agreement::norm;
}

std::vector<ParameterSpec> LayerNorm::parameters(Shapes inputs) const {
  if (!options.affine) return {};
  return {spec("weight", {inputs[0].channels}, 1), spec("bias", {inputs[0].channels}, 0)};
}

Cost LayerNorm::cost(Shapes inputs, const Box& out) const {
  const double n = static_cast<double>(out.volume() * inputs[0].channels);
  return {6 * n, 8 * n, 0, 2 * n};
}

}  // namespace tessera
