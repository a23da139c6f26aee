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

ConvTranspose::ConvTranspose(const ConvTransposeOptions& o) : options(o), kernel(o.kernel.value_or(o.scale)) {
  const auto positive = [](const Pair& p) { return p.height > 0 && p.width > 0; };
  const auto not_negative = [](const Pair& p) { return p.height >= 0 && p.width >= 0; };
  require(o.out > 0, "a transposed convolution to ", o.out, " channels");
  require(positive(o.scale), "scale ", o.scale.height, "x", o.scale.width, " must be positive");
  require(positive(kernel) && positive(o.dilation), "kernel ", kernel.height, "x", kernel.width,
          " and its dilation must be positive");
  require(not_negative(o.pad) && not_negative(o.output_pad), "padding of a transposed convolution must not be negative");
  require(o.output_pad.height < std::max(o.scale.height, o.dilation.height) &&
              o.output_pad.width < std::max(o.scale.width, o.dilation.width),
          "output padding ", o.output_pad.height, "x", o.output_pad.width, " must be less than the stride");
  require(o.groups > 0 && o.out % o.groups == 0, "a transposed convolution to ", o.out, " channels in ", o.groups,
          " groups: the channels must be a multiple of the groups");
}

bool ConvTranspose::of_blocks() const {
  return kernel == options.scale && options.pad == Pair(0) && options.output_pad == Pair(0) &&
         options.dilation == Pair(1) && options.groups == 1;
}

Shape ConvTranspose::output_shape(Shapes inputs) const {
  const Shape& in = inputs[0];
  require(in.channels % options.groups == 0, "a transposed convolution of ", in.channels, " channels in ",
          options.groups, " groups: the channels must be a multiple of the groups");
  const auto along = [](std::int64_t n, std::int64_t stride, std::int64_t taps, std::int64_t dilation, std::int64_t pad,
                        std::int64_t more) { return (n - 1) * stride - 2 * pad + dilation * (taps - 1) + 1 + more; };
  const auto &o = options;
  const Pair full{along(in.height, o.scale.height, kernel.height, o.dilation.height, o.pad.height, o.output_pad.height),
                  along(in.width, o.scale.width, kernel.width, o.dilation.width, o.pad.width, o.output_pad.width)};
  const Pair out = o.size.value_or(full);
  // Less than that, and a pixel would have no output at all.
  const auto fits = [](std::int64_t wanted, std::int64_t most, std::int64_t step) {
    return 0 < wanted && most - step < wanted && wanted <= most;
  };
  require(fits(out.height, full.height, o.scale.height) && fits(out.width, full.width, o.scale.width), in.height, "x",
          in.width, " pixels make ", full.height, "x", full.width, " in a transposed convolution, not ", out.height,
          "x", out.width);
  return {o.out, out.height, out.width, in.depth};
}

std::vector<ParameterSpec> ConvTranspose::parameters(Shapes inputs) const {
  // Torch's default: it takes the second side of the weights for the fan-in.
  const std::int64_t out = options.out / options.groups;
  const Initializer init{Initializer::Kind::uniform,
                         1.0 / std::sqrt(static_cast<double>(out * kernel.height * kernel.width))};
  std::vector<ParameterSpec> specs{{"weight", {inputs[0].channels, out, kernel.height, kernel.width}, init}};
  if (options.bias) specs.push_back({"bias", {options.out}, init});
  return specs;
}

// Output o of an axis gets what input i has for tap k where o = i·stride - pad + k·dilation.
AxisTable ConvTranspose::table(Axis axis, const Shape& input) const {
  const auto along = [&](const Pair& p) { return axis == Axis::height ? p.height : p.width; };
  const std::int64_t n = side_of(input, axis), stride = along(options.scale), pad = along(options.pad);
  const std::int64_t reach = (along(kernel) - 1) * along(options.dilation);
  AxisTable table;
  for (std::int64_t o = 0; o < side_of(output_shape({&input, 1}), axis); ++o) {
    const Interval in{-floor_div(-(o + pad - reach), stride), floor_div(o + pad, stride) + 1};
    table.add(intersect(in, Interval{0, n}), std::min(o / stride, n - 1));
  }
  return table;
}

Cost ConvTranspose::cost(Shapes inputs, const Box& out) const {
  const auto channels = static_cast<double>(inputs[0].channels), outputs = static_cast<double>(options.out);
  const auto positions = static_cast<double>(out.volume());
  const auto pixels = static_cast<double>(input_box(out, 0, inputs).volume());
  const auto taps = static_cast<double>(kernel.height * kernel.width), groups = static_cast<double>(options.groups);
  const double weights = channels * outputs / groups * taps;
  // Every place of a block is made once where blocks do not overlap, and otherwise every pixel makes all of its taps.
  const double flops = 2 * outputs * channels / groups * (of_blocks() ? positions : pixels * taps);
  return {flops, flops, flops, pixels * channels + weights + (options.bias ? outputs : 0) + positions * outputs};
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
