#include "tessera/graph/operations/upsample.h"

#include <cmath>

#include "tessera/base/error.h"

namespace tessera {
namespace {

Shape enlarged(const Shape& in, std::int64_t channels, Pair scale, const std::optional<Pair>& size) {
  const Pair full{in.height * scale.height, in.width * scale.width};
  const Pair out = size.value_or(full);
  // Less than that, and a pixel would have no output at all.
  const auto fits = [](std::int64_t wanted, std::int64_t most, std::int64_t step) {
    return most - step < wanted && wanted <= most;
  };
  require(fits(out.height, full.height, scale.height) && fits(out.width, full.width, scale.width), in.height, "x",
          in.width, " pixels, ", scale.height, "x", scale.width, " for each, do not make ", out.height, "x", out.width);
  return {channels, out.height, out.width, in.depth};
}

// The outputs of each pixel go to its owner.
Box enlarged_box(const Box& in, Pair scale, const Shape& out) {
  const auto along = [](const Interval& side, std::int64_t step, std::int64_t size) {
    return Interval{std::min(side.begin * step, size), std::min(side.end * step, size)};
  };
  Box box = in;
  box[Axis::height] = along(in.height(), scale.height, out.height);
  box[Axis::width] = along(in.width(), scale.width, out.width);
  return box;
}

std::int64_t floor_div(std::int64_t a, std::int64_t b) { return a >= 0 ? a / b : -((-a + b - 1) / b); }

}  // namespace

ConvTranspose::ConvTranspose(const ConvTransposeOptions& o) : options(o) {
  require(o.out > 0, "a transposed convolution to ", o.out, " channels");
  require(o.scale.height > 0 && o.scale.width > 0, "scale ", o.scale.height, "x", o.scale.width, " must be positive");
}

Shape ConvTranspose::output_shape(Shapes inputs) const {
  return enlarged(inputs[0], options.out, options.scale, options.size);
}

std::vector<ParameterSpec> ConvTranspose::parameters(Shapes inputs) const {
  // Torch's default: it takes the second side of the weights for the fan-in.
  const double fan_in = static_cast<double>(options.out * options.scale.height * options.scale.width);
  const Initializer init{Initializer::Kind::uniform, 1.0 / std::sqrt(fan_in)};
  std::vector<ParameterSpec> specs{
      {"weight", {inputs[0].channels, options.out, options.scale.height, options.scale.width}, init}};
  if (options.bias) specs.push_back({"bias", {options.out}, init});
  return specs;
}

Box ConvTranspose::input_box(const Box& out, std::size_t, Shapes) const {
  const auto along = [](const Interval& side, std::int64_t step) {
    return side.empty() ? Interval{} : Interval{floor_div(side.begin, step), floor_div(side.end - 1, step) + 1};
  };
  Box box = out;
  box[Axis::height] = along(out.height(), options.scale.height);
  box[Axis::width] = along(out.width(), options.scale.width);
  return box;
}

Box ConvTranspose::owned_output(const Box& in, Shapes inputs) const {
  return enlarged_box(in, options.scale, output_shape(inputs));
}

Cost ConvTranspose::cost(Shapes inputs, const Box& out) const {
  const auto channels = static_cast<double>(inputs[0].channels), outputs = static_cast<double>(options.out);
  const auto positions = static_cast<double>(out.volume());
  const auto input = static_cast<double>(input_box(out, 0, inputs).volume()) * channels;
  const double weights = channels * outputs * static_cast<double>(options.scale.height * options.scale.width);
  const double flops = 2 * positions * outputs * channels;
  return {flops, flops, flops, input + weights + (options.bias ? outputs : 0) + positions * outputs};
}

Shape Upsample::output_shape(Shapes inputs) const {
  return enlarged(inputs[0], inputs[0].channels, scale, options.size);
}

// Output o lies at (o - 1/2) / 2 between two inputs.
Box Upsample::input_box(const Box& out, std::size_t, Shapes) const {
  const auto along = [](const Interval& side) {
    return side.empty() ? Interval{} : Interval{floor_div(side.begin - 1, scale), floor_div(side.end - 2, scale) + 2};
  };
  Box box = out;
  box[Axis::height] = along(out.height());
  box[Axis::width] = along(out.width());
  return box;
}

Box Upsample::owned_output(const Box& in, Shapes inputs) const { return enlarged_box(in, scale, output_shape(inputs)); }

Cost Upsample::cost(Shapes inputs, const Box& out) const {
  const auto channels = static_cast<double>(inputs[0].channels);
  const double outputs = static_cast<double>(out.volume()) * channels;
  const double read =
      static_cast<double>(intersect(input_box(out, 0, inputs), inputs[0].box(out.batch())).volume()) * channels;
  return {4 * outputs, 4 * outputs, 0, read + outputs};
}

}  // namespace tessera
