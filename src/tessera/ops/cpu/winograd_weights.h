// The weights of a 3x3 convolution as the 36 matrices of Winograd's way, and back.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/ops/cpu/winograd_product.h"

namespace tessera::winograd {

inline constexpr std::int64_t points = 36;
/// Between the 36 matrices, whose sizes are often powers of two: without it what belongs together falls into one set of
/// a cache, which holds eight.
inline constexpr std::int64_t gap = lane;

inline std::int64_t whole_vectors(std::int64_t channels) { return (channels + lane - 1) / lane * lane; }

/// How the weights' memory maps to matrices [from][to], one a tap. Forward goes from input to output channels, its
/// transpose the other way with the taps in reverse.
struct WeightView {
  std::int64_t from, to;
  std::int64_t from_stride, to_stride, tap_stride;
  bool reversed;

  std::int64_t to_whole() const { return whole_vectors(to); }
  /// From one of the 36 matrices to the next.
  std::int64_t step() const { return from * to_whole() + gap; }

  /// Of the rows and columns from these on, up to so many; their weights begin at offset().
  WeightView part(std::int64_t row, std::int64_t rows, std::int64_t column, std::int64_t columns) const {
    WeightView part = *this;
    part.from = std::min(rows, from - row);
    part.to = std::min(columns, to - column);
    return part;
  }
  std::int64_t offset(std::int64_t row, std::int64_t column) const { return row * from_stride + column * to_stride; }

  static WeightView of(const at::Tensor& w, bool reversed) {
    ensure(w.size(2) == 3 && w.size(3) == 3 && w.stride(2) == 3 * w.stride(3), "weights of sizes ", w.sizes(),
           " and strides ", w.strides(), " are not nine evenly spaced taps");
    if (reversed) return {w.size(0), w.size(1), w.stride(0), w.stride(1), w.stride(3), true};
    return {w.size(1), w.size(0), w.stride(1), w.stride(0), w.stride(3), false};
  }
};

/// Rows [first, last) of the 36 matrices, whose columns stand in the panels that product() wants.
void weights_to_matrices(const float* weights, const WeightView& view, std::int64_t first, std::int64_t last,
                         float* to);
/// The transpose: adds the gradient at the 36 points, in plain matrices, to the weights' gradient.
void matrices_to_weights(const float* from, const WeightView& view, float* sum);

}  // namespace tessera::winograd
