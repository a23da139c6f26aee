// Operations that make a plane larger again: the way up of a network like a U.
//
// Both make `scale` rows and columns of one. Where the plane that they must fit has fewer (an odd size was halved and
// rounded up on the way down), `size` says so, and the last rows or columns are not made.
#pragma once

#include "tessera/graph/operations/tabled.h"
#include "tessera/graph/operations/windowed.h"

namespace tessera {

struct ConvTransposeOptions {
  std::int64_t out = 0;      ///< output channels
  Pair scale = 2;            ///< the stride
  std::optional<Pair> size;  ///< rows and columns of the output; unset: all that there are
  bool bias = true;
  std::optional<Pair> kernel;  ///< as `scale` when not given: every pixel becomes a block of its own
  Pair pad = 0;                ///< what is cut off at each side
  Pair output_pad = 0;         ///< what is added below and to the right
  Pair dilation = 1;
  std::int64_t groups = 1;
};

/// A transposed convolution. Where its stride is its kernel, blocks do not overlap: no output needs more than one
/// pixel, and there is no margin.
class ConvTranspose final : public TabledOperation {
 public:
  explicit ConvTranspose(const ConvTransposeOptions& options);
  std::string_view kind() const override { return "conv_transpose"; }
  Shape output_shape(Shapes inputs) const override;
  std::vector<ParameterSpec> parameters(Shapes inputs) const override;
  AxisTable table(Axis axis, const Shape& input) const override;
  Cost cost(Shapes inputs, const Box& out) const override;
  Needs needs() const override { return {.inputs = true}; }
  bool repeats() const override { return true; }
  /// Whether every pixel becomes a block of its own.
  bool of_blocks() const;

  const ConvTransposeOptions options;
  const Pair kernel;
};

struct UpsampleOptions {
  std::optional<Pair> size;  ///< rows and columns of the output; unset: twice those of the input
};

/// Twice as large, bilinear, corners not aligned: a pixel is 9/16, 3/16, 3/16 and 1/16 of the four nearest ones, and
/// outside the image they are those of its edge.
class Upsample final : public Operation {
 public:
  static constexpr std::int64_t scale = 2;

  explicit Upsample(const UpsampleOptions& o) : options(o) {}
  std::string_view kind() const override { return "upsample"; }
  Shape output_shape(Shapes inputs) const override;
  Box input_box(const Box& out, std::size_t i, Shapes inputs) const override;
  Box owned_output(const Box& in, Shapes inputs) const override;
  Cost cost(Shapes inputs, const Box& out) const override;
  Needs needs() const override { return {}; }
  bool repeats() const override { return true; }

  const UpsampleOptions options;
};

}  // namespace tessera
