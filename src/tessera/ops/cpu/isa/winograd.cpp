#include "tessera/ops/cpu/isa/winograd.h"

#include "tessera/ops/cpu/isa/panels.h"
#include "tessera/ops/cpu/isa/winograd_maps.h"

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

// A block of lane×lane weights for each of the nine taps. `at` is the first weight of one.
struct WeightBlock {
  const WeightView& view;
  std::int64_t row, column;

  TESSERA_INLINE std::int64_t at(std::int64_t tap) const {
    return row * view.from_stride + column * view.to_stride + (view.reversed ? 8 - tap : tap) * view.tap_stride;
  }

  TESSERA_INLINE Square square() const {
    return {lesser(lane, view.from - row), lesser(lane, view.to - column), view.from_stride, view.to_stride};
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
      for (int tap = 0; tap < 9; ++tap)
        load_square(weights + here.at(tap), here.square(), block + tap * lane * lane, lane);
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
      for (int tap = 0; tap < 9; ++tap) add_square(sum + here.at(tap), here.square(), block + tap * lane * lane, lane);
    }
}

}  // namespace

const WinogradKernels winograd_kernels{
    lane, inputs_to_points, gradients_to_points, points_to_outputs, weights_to_matrices, matrices_to_weights};

}  // namespace tessera::TESSERA_ISA
