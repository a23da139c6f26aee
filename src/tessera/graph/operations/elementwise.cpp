#include "tessera/graph/operations/elementwise.h"

#include "tessera/base/error.h"

namespace tessera {
namespace {

double elements(const Shape& shape, const Box& out) { return static_cast<double>(out.volume() * shape.channels); }

}  // namespace

Activate::Activate(const Activation& which) : activation(which) {
  if (which.kind == ActivationKind::leaky_relu)
    require(which.parameter >= 0, "leaky_relu with a slope of ", which.parameter, ": it must not be negative");
  if (which.kind == ActivationKind::hard_tanh)
    require(which.parameter > 0, "hard_tanh up to ", which.parameter, ": it must be above 0");
}

Cost Activate::cost(Shapes inputs, const Box& out) const {
  const double n = elements(inputs[0], out);
  return {n, n, 0, 2 * n};
}

Shape Arithmetic::output_shape(Shapes inputs) const {
  require(inputs.size() == 2, kind(), " takes two values, not ", inputs.size());
  const Shape &a = inputs[0], &b = inputs[1];
  const bool plane = b.positions() == 1 || (b.height == a.height && b.width == a.width && b.depth == a.depth);
  require(plane && (b.channels == 1 || b.channels == a.channels), "values of ", a, " and ", b, " do not fit for ",
          kind(), ": the second must have the first's shape, or one channel, or one position");
  return a;
}

Box Arithmetic::input_box(const Box& out, std::size_t i, Shapes inputs) const {
  return i == 1 && inputs[1].positions() == 1 && inputs[0].positions() != 1 ? inputs[1].box(out.batch()) : out;
}

Cost Arithmetic::cost(Shapes inputs, const Box& out) const {
  const double n = elements(inputs[0], out);
  return combine == Combine::sum ? Cost{n, 0, 0, 3 * n} : Cost{n, 2 * n, 0, 3 * n};
}

std::vector<ParameterSpec> PRelu::parameters(Shapes inputs) const {
  return {{.suffix = "weight",
           .sizes = {by_channel ? inputs[0].channels : 1},
           .init = {Initializer::Kind::constant, 0.25},
           .wide = true}};
}

Cost PRelu::cost(Shapes inputs, const Box& out) const {
  const double n = elements(inputs[0], out);
  return {n, n, n, 2 * n};
}

Dropout::Dropout(double p, DropoutOf what) : probability(p), of(what) {
  require(p >= 0 && p < 1, "dropout probability ", p, " must be at least 0 and less than 1");
}

Cost Dropout::cost(Shapes inputs, const Box& out) const {
  const double n = elements(inputs[0], out);
  return {n, n, 0, 2 * n};
}

}  // namespace tessera
