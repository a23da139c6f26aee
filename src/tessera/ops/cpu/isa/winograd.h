// The parts of Winograd's convolution that compute; see winograd.h.
#pragma once

#include "tessera/ops/cpu/isa/tables.h"
#include "tessera/ops/cpu/lanes.h"

namespace tessera::winograd {

inline constexpr std::int64_t points = 36;

TESSERA_INLINE std::int64_t whole_vectors(std::int64_t channels, std::int64_t lane) {
  return (channels + lane - 1) / lane * lane;
}

/// How the weights' memory maps to matrices [from][to], one a tap. Forward goes from input to output channels, its
/// transpose the other way with the taps in reverse.
struct WeightView {
  std::int64_t from, to;
  std::int64_t from_stride, to_stride, tap_stride;
  bool reversed;
  std::int64_t lane;  // numbers in a vector of the machine

  TESSERA_INLINE std::int64_t to_whole() const { return whole_vectors(to, lane); }
  /// From one of the 36 matrices to the next. Their sizes are often powers of two: without a gap between them what
  /// belongs together falls into one set of a cache, which holds eight.
  TESSERA_INLINE std::int64_t step() const { return from * to_whole() + lane; }

  /// Of the rows and columns from these on, up to so many; their weights begin at offset().
  TESSERA_INLINE WeightView part(std::int64_t row, std::int64_t rows, std::int64_t column, std::int64_t columns) const {
    WeightView part = *this;
    part.from = rows < from - row ? rows : from - row;
    part.to = columns < to - column ? columns : to - column;
    return part;
  }
  TESSERA_INLINE std::int64_t offset(std::int64_t row, std::int64_t column) const {
    return row * from_stride + column * to_stride;
  }
};

}  // namespace tessera::winograd

namespace tessera {

struct WinogradKernels {
  std::int64_t lane;  ///< numbers in a vector

  /// The values of a patch's 6×6 inputs, or 4×4 gradients, go to 36 matrices, `step` numbers apart, of one row a patch.
  /// Memory of the matrices is in whole vectors of channels, that of pixels is not.
  void (*inputs_to_points)(const float* const* pixels, std::int64_t channels, float* to, std::int64_t step);
  void (*gradients_to_points)(const float* const* pixels, std::int64_t channels, float* to, std::int64_t step);
  void (*points_to_outputs)(const float* from, std::int64_t step, const float* bias, std::int64_t channels,
                            float* const* pixels);

  /// Rows [first, last) of the 36 matrices, whose columns stand in the panels that multiply_panels wants
  /// (isa/product.h).
  void (*weights_to_matrices)(const float* weights, const winograd::WeightView& view, std::int64_t first,
                              std::int64_t last, float* to);
  /// The transpose: adds the gradient at the 36 points, in plain matrices, to the weights' gradient.
  void (*matrices_to_weights)(const float* from, const winograd::WeightView& view, float* sum);
};
TESSERA_ISA_TABLE(WinogradKernels, winograd_kernels)

}  // namespace tessera
