#include "tessera/graph/operations/resample.h"

#include <cmath>

#include "tessera/base/error.h"

namespace tessera {
namespace {

std::int64_t along(const Pair& pair, Axis axis) { return axis == Axis::height ? pair.height : pair.width; }

// What is read and written once.
double moved(const Operation& op, Shapes inputs, const Box& out) {
  const Box in = intersect(op.input_box(out, 0, inputs), inputs[0].box(out.batch()));
  return static_cast<double>((in.volume() + out.volume()) * inputs[0].channels);
}

}  // namespace

Pad::Pad(const PadOptions& o) : options(o) {
  const Pair after = o.after.value_or(o.before);
  const bool crops = o.before.height < 0 || o.before.width < 0 || after.height < 0 || after.width < 0;
  require(o.mode == PadMode::zeros || !crops, "only padding with zeros may be negative");
}

Shape Pad::output_shape(Shapes inputs) const {
  const Shape& in = inputs[0];
  const Pair after = options.after.value_or(options.before);
  const Shape out{in.channels, in.height + options.before.height + after.height,
                  in.width + options.before.width + after.width, in.depth};
  require(out.height > 0 && out.width > 0, "padding by ", options.before.height, "x", options.before.width, " and ",
          after.height, "x", after.width, " leaves nothing of ", in);
  for (const Axis axis : {Axis::height, Axis::width}) {
    const std::int64_t most = std::max(along(options.before, axis), along(after, axis)), size = side_of(in, axis);
    require(options.mode != PadMode::reflect || most < size, "reflecting padding of ", most, " needs more than ", size,
            " pixels; use a larger --image-size");
    require(options.mode != PadMode::circular || most <= size, "circular padding of ", most, " needs at least as many ",
            "pixels, not ", size, "; use a larger --image-size");
  }
  return out;
}

std::int64_t Pad::source(std::int64_t o, Axis axis, const Shape& input) const {
  const std::int64_t n = side_of(input, axis), i = o - along(options.before, axis);
  if (0 <= i && i < n) return i;
  switch (options.mode) {
    case PadMode::zeros:
      return -1;
    case PadMode::reflect:
      return i < 0 ? -i : 2 * (n - 1) - i;
    case PadMode::replicate:
      return std::clamp<std::int64_t>(i, 0, n - 1);
    case PadMode::circular:
      return (i + n) % n;
  }
  return -1;
}

AxisTable Pad::table(Axis axis, const Shape& input) const {
  AxisTable table;
  const std::int64_t n = side_of(input, axis), outputs = side_of(output_shape({&input, 1}), axis);
  for (std::int64_t o = 0; o < outputs; ++o) {
    const std::int64_t i = source(o, axis, input);
    table.add(i < 0 ? Interval{} : Interval{i, i + 1}, std::clamp<std::int64_t>(o - along(options.before, axis), 0, n - 1));
  }
  return table;
}

Cost Pad::cost(Shapes inputs, const Box& out) const { return {0, 0, 0, moved(*this, inputs, out)}; }

Resize::Resize(const ResizeOptions& o) : options(o) {
  require(o.factor.has_value() != o.size.has_value(), "a resize takes a factor or a size, not both or none");
  require(!o.factor || *o.factor > 0, "a resize by ", o.factor.value_or(0), ": the factor must be positive");
  require(!o.size || (o.size->height > 0 && o.size->width > 0), "a resize to nothing");
  require(o.mode == ResizeMode::bilinear || !o.align_corners, "only a bilinear resize aligns corners");
}

Shape Resize::output_shape(Shapes inputs) const {
  const Shape& in = inputs[0];
  const auto scaled = [&](std::int64_t n) {
    return static_cast<std::int64_t>(std::floor(static_cast<double>(n) * *options.factor));
  };
  const Shape out = options.size ? Shape{in.channels, options.size->height, options.size->width, in.depth}
                                 : Shape{in.channels, scaled(in.height), scaled(in.width), in.depth};
  require(out.height > 0 && out.width > 0, "a resize by ", *options.factor, " leaves nothing of ", in);
  return out;
}

Resize::Source Resize::source(std::int64_t o, Axis axis, const Shape& input) const {
  const std::int64_t n = side_of(input, axis), m = side_of(output_shape({&input, 1}), axis);
  const double place = static_cast<double>(o);
  // Torch takes the factor where it is given, and the ratio of the sizes otherwise; nearest in single precision.
  const double step = options.factor ? 1.0 / *options.factor : static_cast<double>(n) / static_cast<double>(m);
  if (options.mode == ResizeMode::nearest) {
    const float at = std::floor(static_cast<float>(o) * static_cast<float>(step));
    return {std::min(static_cast<std::int64_t>(at), n - 1), 0};
  }
  double at = 0;
  if (options.align_corners)
    at = m > 1 ? place * static_cast<double>(n - 1) / static_cast<double>(m - 1) : 0;
  else
    at = std::max(0.0, step * (place + 0.5) - 0.5);
  const auto first = std::min(static_cast<std::int64_t>(at), n - 1);
  return {first, first + 1 < n ? std::clamp(at - static_cast<double>(first), 0.0, 1.0) : 0};
}

AxisTable Resize::table(Axis axis, const Shape& input) const {
  AxisTable table;
  const std::int64_t outputs = side_of(output_shape({&input, 1}), axis);
  for (std::int64_t o = 0; o < outputs; ++o) {
    const Source s = source(o, axis, input);
    table.add({s.first, s.first + (s.weight > 0 ? 2 : 1)}, s.first);
  }
  return table;
}

Cost Resize::cost(Shapes inputs, const Box& out) const {
  const double n = static_cast<double>(out.volume() * inputs[0].channels);
  const double flops = options.mode == ResizeMode::bilinear ? 4 * n : 0;
  return {flops, flops, 0, moved(*this, inputs, out)};
}

AdaptivePool::AdaptivePool(const AdaptivePoolOptions& o) : options(o) {
  require(o.size.height > 0 && o.size.width > 0, "an adaptive pool to ", o.size.height, "x", o.size.width);
}

Shape AdaptivePool::output_shape(Shapes inputs) const {
  return {inputs[0].channels, options.size.height, options.size.width, inputs[0].depth};
}

AxisTable AdaptivePool::table(Axis axis, const Shape& input) const {
  AxisTable table;
  const std::int64_t n = side_of(input, axis), m = along(options.size, axis);
  for (std::int64_t o = 0; o < m; ++o) table.add({o * n / m, ((o + 1) * n + m - 1) / m}, o * n / m);
  return table;
}

Cost AdaptivePool::cost(Shapes inputs, const Box& out) const {
  const double read = moved(*this, inputs, out);
  return {read, read, 0, read};
}

}  // namespace tessera
