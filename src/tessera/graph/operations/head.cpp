#include "tessera/graph/operations/head.h"

#include <cmath>

#include "tessera/base/error.h"

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
  return {flops, flops, flops, batch * (in + features) + weights, batch * in};
}

Shape CrossEntropy::output_shape(Shapes inputs) const {
  require(inputs[0].positions() == 1, "the loss takes one row of logits a sample, not ", inputs[0]);
  return {1, 1, 1, 1};
}

Cost CrossEntropy::cost(Shapes inputs, const Box& out) const {
  const double n = static_cast<double>(out.batch().size() * inputs[0].channels);
  return {4 * n, 2 * n, 0, n, n};
}

}  // namespace tessera
