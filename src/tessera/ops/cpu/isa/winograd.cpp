#include "tessera/ops/cpu/isa/winograd.h"

#include "tessera/ops/cpu/isa/winograd_maps.h"
#include "tessera/ops/cpu/isa/winograd_product.h"

namespace tessera::TESSERA_ISA {
namespace {

using winograd::WeightView;

// The last vector of a pixel may be a part of one.
TESSERA_INLINE V load_some(const float* from, std::int64_t n) {
  if (n >= lane) return load<V>(from);
  V x{};
  for (std::int64_t i = 0; i < n; ++i) x[i] = from[i];
  return x;
}
TESSERA_INLINE void store_some(float* to, const V& x, std::int64_t n) {
  if (n >= lane) return store(to, x);
  for (std::int64_t i = 0; i < n; ++i) to[i] = x[i];
}

// The values of a patch go to 36 matrices, `step` numbers apart, of one row a patch.
void inputs_to_points(const float* const* pixels, std::int64_t channels, float* to, std::int64_t step) {
  for (std::int64_t c = 0; c < channels; c += lane) {
    V x[36], t[36];
    for (int i = 0; i < 36; ++i) x[i] = load_some(pixels[i] + c, channels - c);
#pragma GCC unroll 6
    for (int j = 0; j < 6; ++j) to_points(x + j, 6, t + j, 6);
#pragma GCC unroll 6
    for (int i = 0; i < 6; ++i) to_points(t + 6 * i, 1, x + 6 * i, 1);
    for (int i = 0; i < 36; ++i) store(to + i * step + c, x[i]);
  }
}

void gradients_to_points(const float* const* pixels, std::int64_t channels, float* to, std::int64_t step) {
  for (std::int64_t c = 0; c < channels; c += lane) {
    V y[16], t[24], m[36];
    for (int i = 0; i < 16; ++i) y[i] = load_some(pixels[i] + c, channels - c);
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) gradient_to_points(y + j, 4, t + j, 4);
#pragma GCC unroll 6
    for (int i = 0; i < 6; ++i) gradient_to_points(t + 4 * i, 1, m + 6 * i, 1);
    for (int i = 0; i < 36; ++i) store(to + i * step + c, m[i]);
  }
}

void points_to_outputs(const float* from, std::int64_t step, const float* bias, std::int64_t channels,
                       float* const* pixels) {
  for (std::int64_t c = 0; c < channels; c += lane) {
    V m[36], t[24], y[16];
    const V offset = bias ? load_some(bias + c, channels - c) : V{};
    for (int i = 0; i < 36; ++i) m[i] = load<V>(from + i * step + c);
#pragma GCC unroll 6
    for (int j = 0; j < 6; ++j) from_points(m + j, 6, t + j, 6);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) from_points(t + 6 * i, 1, y + 4 * i, 1);
    for (int i = 0; i < 16; ++i) store_some(pixels[i] + c, y[i] + offset, channels - c);
  }
}

// Swaps rows and columns of a square of lane×lane numbers: of ever smaller quarters the two off the diagonal.
template <int half = lane / 2>
TESSERA_INLINE void transpose(V* x) {
  typedef int Order __attribute__((vector_size(sizeof(V))));
  Order upper, lower;
#pragma GCC unroll 16
  for (int e = 0; e < lane; ++e) {
    upper[e] = e & half ? static_cast<int>(lane) + e - half : e;
    lower[e] = e & half ? static_cast<int>(lane) + e : e + half;
  }
#pragma GCC unroll 16
  for (int i = 0; i < lane; ++i) {
    if (i & half) continue;
    const V above = x[i], below = x[i + half];
    x[i] = __builtin_shuffle(above, below, upper);
    x[i + half] = __builtin_shuffle(above, below, lower);
  }
  if constexpr (half > 1) transpose<half / 2>(x);
}

// A block of lane×lane weights for each of the nine taps. `at` is the first weight of one.
struct WeightBlock {
  const WeightView& view;
  std::int64_t row, column;

  TESSERA_INLINE std::int64_t rows() const { return lesser(lane, view.from - row); }
  TESSERA_INLINE std::int64_t columns() const { return lesser(lane, view.to - column); }
  TESSERA_INLINE bool full() const { return rows() == lane && columns() == lane; }
  TESSERA_INLINE std::int64_t at(std::int64_t tap) const {
    return row * view.from_stride + column * view.to_stride + (view.reversed ? 8 - tap : tap) * view.tap_stride;
  }

  /// Copies a tap's weights to rows of `lane` numbers.
  TESSERA_INLINE void load_tap(const float* weights, std::int64_t tap, float* to) const {
    const float* const from = weights + at(tap);
    if (full() && view.to_stride == 1) {
#pragma GCC unroll 16
      for (int i = 0; i < lane; ++i) store(to + i * lane, load<V>(from + i * view.from_stride));
    } else if (full() && view.from_stride == 1) {
      V x[lane];
#pragma GCC unroll 16
      for (int j = 0; j < lane; ++j) x[j] = load<V>(from + j * view.to_stride);
      transpose(x);
#pragma GCC unroll 16
      for (int i = 0; i < lane; ++i) store(to + i * lane, x[i]);
    } else {
      for (std::int64_t i = 0; i < rows(); ++i)
        for (std::int64_t j = 0; j < columns(); ++j) to[i * lane + j] = from[i * view.from_stride + j * view.to_stride];
    }
  }

  /// The transpose: adds rows of `lane` numbers to a tap's weights.
  TESSERA_INLINE void add_tap(float* weights, std::int64_t tap, const float* from) const {
    float* const to = weights + at(tap);
    if (full() && view.from_stride == 1) {
      V x[lane];
#pragma GCC unroll 16
      for (int i = 0; i < lane; ++i) x[i] = load<V>(from + i * lane);
      transpose(x);
#pragma GCC unroll 16
      for (int j = 0; j < lane; ++j) store(to + j * view.to_stride, load<V>(to + j * view.to_stride) + x[j]);
    } else {
      for (std::int64_t i = 0; i < rows(); ++i)
        for (std::int64_t j = 0; j < columns(); ++j)
          to[i * view.from_stride + j * view.to_stride] += from[i * lane + j];
    }
  }
};

void weights_to_matrices(const float* weights, const WeightView& view, std::int64_t first, std::int64_t last,
                         float* to) {
  float block[9 * lane * lane]{};
  const std::int64_t step = view.step();
  for (std::int64_t column = 0; column < view.to_whole(); column += lane) {
    const Panel panel = panel_of(column, view.to_whole());
    for (std::int64_t row = first; row < last; row += lane) {
      const WeightBlock here{view, row, column};
      for (int tap = 0; tap < 9; ++tap) here.load_tap(weights, tap, block + tap * lane * lane);
      for (std::int64_t i = 0; i < lesser(lane, last - row); ++i) {
        V w[9], t[18], u[36];
        for (int k = 0; k < 9; ++k) w[k] = load<V>(block + (k * lane + i) * lane);
        for (int j = 0; j < 3; ++j) weights_to_points(w + j, 3, t + j, 3);
        for (int j = 0; j < 6; ++j) weights_to_points(t + 3 * j, 1, u + 6 * j, 1);
        float* const place = to + panel.begin * view.from + (row + i) * panel.width + (column - panel.begin);
#pragma GCC unroll 36
        for (int k = 0; k < 36; ++k) store(place + k * step, u[k]);
      }
    }
  }
}

void matrices_to_weights(const float* from, const WeightView& view, float* sum) {
  float block[9 * lane * lane];
  const std::int64_t step = view.step(), across = view.to_whole();
  for (std::int64_t column = 0; column < view.to_whole(); column += lane)
    for (std::int64_t row = 0; row < view.from; row += lane) {
      for (std::int64_t i = 0; i < lesser(lane, view.from - row); ++i) {
        V u[36], t[18], w[9];
#pragma GCC unroll 36
        for (int k = 0; k < 36; ++k) u[k] = load<V>(from + k * step + (row + i) * across + column);
        for (int j = 0; j < 6; ++j) weights_from_points(u + j, 6, t + j, 6);
        for (int j = 0; j < 3; ++j) weights_from_points(t + 6 * j, 1, w + 3 * j, 1);
        for (int k = 0; k < 9; ++k) store(block + (k * lane + i) * lane, w[k]);
      }
      const WeightBlock here{view, row, column};
      for (int tap = 0; tap < 9; ++tap) here.add_tap(sum, tap, block + tap * lane * lane);
    }
}

}  // namespace

const WinogradKernels winograd_kernels{lane,
                                       inputs_to_points,
                                       gradients_to_points,
                                       points_to_outputs,
                                       weights_to_matrices,
                                       matrices_to_weights,
                                       product<Panels::apart, false>,
                                       product<Panels::apart, true>,
                                       product<Panels::side_by_side, false>,
                                       product<Panels::side_by_side, true>};

}  // namespace tessera::TESSERA_ISA
