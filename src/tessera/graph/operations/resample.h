// Operations that change the size of a plane: padding, resizing, adaptive pools.
#pragma once

#include "tessera/graph/operations/tabled.h"
#include "tessera/graph/operations/windowed.h"

namespace tessera {

enum class PadMode { zeros, reflect, replicate, circular };

struct PadOptions {
  Pair before = 0;             ///< rows above and columns to the left; negative crops (zeros only)
  std::optional<Pair> after;   ///< below and to the right; as `before` when not given
  PadMode mode = PadMode::zeros;
};

/// With circular padding a tile at an edge looks at the opposite edge, and holds what lies between: it is exact on tiles
/// but saves no memory there.
class Pad final : public TabledOperation {
 public:
  explicit Pad(const PadOptions& options);
  std::string_view kind() const override { return "pad"; }
  Shape output_shape(Shapes inputs) const override;
  AxisTable table(Axis axis, const Shape& input) const override;
  Cost cost(Shapes inputs, const Box& out) const override;
  Needs needs() const override { return {}; }
  bool repeats() const override { return true; }

  /// The input that output `o` is a copy of along an axis; -1: a zero.
  std::int64_t source(std::int64_t o, Axis axis, const Shape& input) const;

  const PadOptions options;
};

enum class ResizeMode { nearest, bilinear };

struct ResizeOptions {
  ResizeMode mode = ResizeMode::nearest;
  /// One of the two: how many times as large (rounded down), or how large.
  std::optional<double> factor;
  std::optional<Pair> size;
  bool align_corners = false;  ///< bilinear: the corner pixels of both planes lie on each other
};

/// Nearest or bilinear, as torch's interpolate.
class Resize final : public TabledOperation {
 public:
  explicit Resize(const ResizeOptions& options);
  std::string_view kind() const override { return "resize"; }
  Shape output_shape(Shapes inputs) const override;
  AxisTable table(Axis axis, const Shape& input) const override;
  Cost cost(Shapes inputs, const Box& out) const override;
  Needs needs() const override { return {}; }
  bool repeats() const override { return true; }

  /// Output `o` is (1 - weight) of input `first` and weight of the next one.
  struct Source {
    std::int64_t first = 0;
    double weight = 0;
  };
  Source source(std::int64_t o, Axis axis, const Shape& input) const;

  const ResizeOptions options;
};

struct AdaptivePoolOptions {
  Pair size = 1;  ///< of the output
  bool max = false;
};

/// Output o of m is the mean or maximum of the inputs from o·n/m on, rounded down, to (o+1)·n/m, rounded up.
class AdaptivePool final : public TabledOperation {
 public:
  explicit AdaptivePool(const AdaptivePoolOptions& options);
  std::string_view kind() const override { return options.max ? "adaptive_max_pool" : "adaptive_avg_pool"; }
  Shape output_shape(Shapes inputs) const override;
  AxisTable table(Axis axis, const Shape& input) const override;
  Cost cost(Shapes inputs, const Box& out) const override;
  Needs needs() const override { return {}; }
  bool repeats() const override { return true; }

  const AdaptivePoolOptions options;
};

}  // namespace tessera
