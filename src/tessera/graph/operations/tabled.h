// What pads, resizes, adaptive pools and transposed convolutions share: along each axis, a table says which inputs every
// output looks at.
#pragma once

#include <algorithm>
#include <vector>

#include "tessera/graph/operation.h"

namespace tessera {

/// One entry per output of an axis.
struct AxisTable {
  std::vector<Interval> sees;         ///< inputs; empty where an output looks at none
  std::vector<std::int64_t> anchors;  ///< the input whose owner gets the output; never falls

  std::int64_t outputs() const { return static_cast<std::int64_t>(anchors.size()); }
  void add(Interval inputs, std::int64_t anchor) {
    sees.push_back(inputs);
    anchors.push_back(anchor);
  }
  /// The inputs that an interval of outputs looks at, and those between them.
  Interval input_of(const Interval& out) const {
    Interval in;
    for (std::int64_t o = out.begin; o < out.end; ++o) in = hull(in, sees[static_cast<std::size_t>(o)]);
    return in;
  }
  /// Pieces of a partition of the inputs give pieces of a partition of the outputs.
  Interval owned_outputs(const Interval& in) const {
    const auto first = [&](std::int64_t i) {
      return std::lower_bound(anchors.begin(), anchors.end(), i) - anchors.begin();
    };
    return {first(in.begin), first(std::max(in.begin, in.end))};
  }
};

class TabledOperation : public Operation {
 public:
  /// Along height or width, for an input of this shape. Anchors lie in the image.
  virtual AxisTable table(Axis axis, const Shape& input) const = 0;

  Box input_box(const Box& out, std::size_t, Shapes inputs) const override {
    Box in = out;
    for (const Axis axis : {Axis::height, Axis::width}) in[axis] = table(axis, inputs[0]).input_of(out[axis]);
    return in;
  }
  Box owned_output(const Box& in, Shapes inputs) const override {
    Box out = in;
    for (const Axis axis : {Axis::height, Axis::width}) out[axis] = table(axis, inputs[0]).owned_outputs(in[axis]);
    return out;
  }
};

/// The side of a shape along an axis.
inline std::int64_t side_of(const Shape& shape, Axis axis) { return axis == Axis::height ? shape.height : shape.width; }

}  // namespace tessera
