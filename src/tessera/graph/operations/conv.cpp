#include "tessera/graph/operations/conv.h"

#include <cmath>

#include "tessera/base/error.h"

namespace tessera {

Conv::Conv(const ConvOptions& o)
    : options(o), windows(o.kernel, o.stride, o.pad, o.pad_end.value_or(o.pad), o.dilation) {
  require(o.out > 0 && o.groups > 0 && o.out % o.groups == 0, "convolution to ", o.out, " channels in ", o.groups,
          " groups: the channels must be a positive multiple of the groups");
}

Shape Conv::output_shape(Shapes inputs) const {
  ensure(options.pad_mode == PadMode::zeros, "a convolution pads with zeros only");
  require(inputs[0].channels % options.groups == 0, "convolution of ", inputs[0].channels, " channels in ",
          options.groups, " groups: the channels must be a multiple of the groups");
  return windows.apply(inputs[0], options.out);
}

std::vector<ParameterSpec> Conv::parameters(Shapes inputs) const {
  const std::int64_t taps = options.kernel.height * options.kernel.width;
  const std::int64_t in = inputs[0].channels / options.groups;
  const double bound = 1.0 / std::sqrt(static_cast<double>(in * taps));
  Initializer init{Initializer::Kind::uniform, bound};
  if (options.fan_out_gain)
    init = {Initializer::Kind::normal, *options.fan_out_gain / std::sqrt(static_cast<double>(options.out * taps))};
  std::vector<ParameterSpec> specs{{"weight", {options.out, in, options.kernel.height, options.kernel.width}, init}};
  if (options.bias) specs.push_back({"bias", {options.out}, {Initializer::Kind::uniform, bound}});
  return specs;
}

std::optional<OperationPtr> Conv::before_mean() const {
  const bool every_position_by_itself = options.kernel == Pair(1) && options.stride == Pair(1) &&
                                        options.pad == Pair(0) && options.pad_end.value_or(0) == Pair(0);
  if (!every_position_by_itself) return std::nullopt;
  return std::make_shared<Conv>(options);
}

Workspace Conv::workspace(Shapes inputs, const Box& out, std::int64_t element_bytes) const {
  const auto weights = static_cast<double>(parameters(inputs)[0].elements() * element_bytes);
  return {.weight_gradient = weights};
}

Cost Conv::cost(Shapes inputs, const Box& out) const {
  const auto positions = static_cast<double>(out.volume());
  const auto weights = static_cast<double>(options.kernel.height * options.kernel.width * options.out *
                                           (inputs[0].channels / options.groups));
  const auto input =
      static_cast<double>(intersect(windows.input_of(out), inputs[0].box(out.batch())).volume() * inputs[0].channels);
  const double flops = 2 * positions * weights;
  const double bias = options.bias ? static_cast<double>(options.out) : 0;
  return {flops, flops, flops, input + weights + bias + positions * static_cast<double>(options.out)};
}

}  // namespace tessera
