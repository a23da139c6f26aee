#include "tessera/graph/operations/head.h"

#include <algorithm>

#include <cmath>

#include "tessera/base/error.h"
#include "tessera/graph/operations/conv.h"

namespace tessera {

Linear::Linear(const LinearOptions& o) : options(o) {
  require(o.out > 0, "a linear layer needs at least one output, not ", o.out, "; change --num-classes");
}

Shape Linear::output_shape(Shapes inputs) const {
  require(inputs[0].positions() == 1, "a linear layer takes one long channel, not ", inputs[0],
          "; flatten or pool its input first");
  return {options.out, 1, 1, 1};
}

std::vector<ParameterSpec> Linear::parameters(Shapes inputs) const {
  const Initializer init{Initializer::Kind::uniform, 1.0 / std::sqrt(static_cast<double>(inputs[0].channels))};
  std::vector<ParameterSpec> specs{{"weight", {options.out, inputs[0].channels}, init}};
  if (options.bias) specs.push_back({"bias", {options.out}, init});
  return specs;
}

Cost Linear::cost(Shapes inputs, const Box& out) const {
  const auto batch = static_cast<double>(out.batch().size());
  const auto in = static_cast<double>(inputs[0].channels), features = static_cast<double>(options.out);
  const double flops = 2 * batch * in * features;
  const double weights = in * features + (options.bias ? features : 0);
  return {flops, flops, flops, batch * (in + features) + weights};
}

std::optional<OperationPtr> Linear::before_mean() const {
  return std::make_shared<Conv>(ConvOptions{.out = options.out, .bias = options.bias});
}

Shape CrossEntropy::output_shape(Shapes inputs) const {
  Problems problems;
  problems.check(0 <= options.smoothing && options.smoothing < 1, "--label-smoothing ", options.smoothing,
                 " must be at least 0 and less than 1");
  const auto weights = static_cast<std::int64_t>(options.class_weights.size());
  problems.check(weights == 0 || weights == inputs[0].channels, "--class-weights has ", weights, " numbers, but there ",
                 inputs[0].channels == 1 ? "is " : "are ", inputs[0].channels,
                 inputs[0].channels == 1 ? " class" : " classes");
  for (const double w : options.class_weights)
    problems.check(std::isfinite(w) && w >= 0, "--class-weights: ", w, " must be a number of at least 0");
  problems.check(weights == 0 || std::ranges::any_of(options.class_weights, [](double w) { return w > 0; }),
                 "--class-weights: at least one must be more than 0");
  problems.check(std::isfinite(options.dice) && options.dice >= 0, "--dice-weight ", options.dice,
                 " must be a number of at least 0");
  problems.check(options.dice == 0 || labels == LabelKind::pixel, "--dice-weight ", options.dice,
                 " is for networks that label pixels; this one labels images");
  for (const Shape& other : inputs)
    problems.check(other == inputs[0], "an auxiliary output is ", other, ", but the network's own ", inputs[0]);
  problems.throw_if_any();
  if (labels != LabelKind::pixel)
    require(inputs[0].positions() == 1, "the loss of images takes one row of logits a sample, not ", inputs[0],
            "; the loss of pixels is pixel_cross_entropy");
  else
    require(inputs[0].channels <= ignored_label, "masks have at most ", ignored_label, " classes, not ",
            inputs[0].channels, "; change --num-classes");
  return {1, inputs[0].height, inputs[0].width, inputs[0].depth};
}

Workspace CrossEntropy::workspace(Shapes inputs, const Box& out, std::int64_t element_bytes) const {
  // Logarithms of the probabilities are kept, in float32 at least; labels are looked up by numbers of 8 bytes, twice
  // where some are to be ignored.
  const auto rows = static_cast<double>(out.volume());
  const double index = labels == LabelKind::pixel ? 16 : 8;
  const auto wide = static_cast<double>(std::max<std::int64_t>(element_bytes, 4));
  const double logits = rows * static_cast<double>(inputs[0].channels * std::ssize(inputs)) * wide;
  const double heads = inputs.size() > 1 ? rows * wide : 0;
  const double weighed = options.smoothing > 0 || !options.class_weights.empty() ? rows * wide : 0;
  if (labels == LabelKind::several) return {.saved = logits, .forward = 6 * logits, .input_gradient = 5 * logits};
  const double dice = options.dice > 0 ? logits : 0;
  return {.saved = logits,
          .forward = rows * index + weighed + heads + dice + (dice > 0 ? 4 * rows * wide : 0),
          .input_gradient = rows * (index + 2 * wide) + 2 * weighed + heads + 3 * dice};
}

Cost CrossEntropy::cost(Shapes inputs, const Box& out) const {
  const double n = static_cast<double>(out.volume() * inputs[0].channels * std::ssize(inputs));
  return {4 * n, 2 * n, 0, n};
}

}  // namespace tessera
