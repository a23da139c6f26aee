#include "tessera/graph/operations/elementwise.h"

#include "tessera/base/error.h"

namespace tessera {
namespace {

double elements(const Shape& shape, const Box& out) { return static_cast<double>(out.volume() * shape.channels); }

}  // namespace

Cost Relu::cost(Shapes inputs, const Box& out) const {
  const double n = elements(inputs[0], out);
  return {n, n, 0, 2 * n, n};
}

Shape Add::output_shape(Shapes inputs) const {
  require(inputs.size() == 2, "add takes two values, not ", inputs.size());
  require(inputs[0] == inputs[1], "only values of one shape can be added, not ", inputs[0], " and ", inputs[1]);
  return inputs[0];
}

Cost Add::cost(Shapes inputs, const Box& out) const {
  const double n = elements(inputs[0], out);
  return {n, 0, 0, 3 * n, 0};
}

Shape Concat::output_shape(Shapes inputs) const {
  Shape out = inputs[0];
  out.channels = 0;
  for (const auto& shape : inputs) {
    require(shape.height == out.height && shape.width == out.width && shape.depth == out.depth,
            "only values of one size can be joined, not ", inputs[0], " and ", shape);
    out.channels += shape.channels;
  }
  return out;
}

Cost Concat::cost(Shapes inputs, const Box& out) const { return {0, 0, 0, 2 * elements(output_shape(inputs), out), 0}; }

Dropout::Dropout(double p) : probability(p) {
  require(p >= 0 && p < 1, "dropout probability ", p, " must be at least 0 and less than 1");
}

Cost Dropout::cost(Shapes inputs, const Box& out) const {
  const double n = elements(inputs[0], out);
  return {n, n, 0, 2 * n, 0};
}

std::vector<ParameterSpec> BatchNorm::parameters(Shapes inputs) const {
  const std::vector<std::int64_t> sizes{inputs[0].channels};
  using Kind = Initializer::Kind;
  return {{"weight", sizes, {Kind::constant, 1}},
          {"bias", sizes, {Kind::constant, 0}},
          {"running_mean", sizes, {Kind::constant, 0}, false},
          {"running_var", sizes, {Kind::constant, 1}, false},
          {"num_batches_tracked", {}, {Kind::constant, 0}, false}};
}

Cost BatchNorm::cost(Shapes inputs, const Box& out) const {
  const double n = elements(inputs[0], out);
  return {6 * n, 8 * n, 0, 3 * n, n};  // read for the statistics, read again and written to normalise
}

}  // namespace tessera
