// Matrix products of Winograd's convolution, on vectors of 64 bytes; see winograd.h.
#pragma once

#include "tessera/ops/cpu/lanes.h"

namespace tessera::winograd {

using V = lanes::Vector<float>;
constexpr std::int64_t lane = lanes::vector_length<float>;

// A matrix product's operands: numbers of a are `a_row` and `a_depth` apart, rows of b `b_depth`, rows of c `c_row`.
struct Strides {
  std::int64_t a_row, a_depth, b_depth, c_row;
};

template <int rows, int vectors, bool add>
TESSERA_INLINE void product_of_registers(const float* a, const float* b, float* c, std::int64_t depth,
                                         const Strides& s) {
  V sum[rows][vectors];
#pragma GCC unroll 16
  for (int i = 0; i < rows; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < vectors; ++j) sum[i][j] = add ? lanes::load<V>(c + i * s.c_row + j * lane) : V{};
  for (std::int64_t k = 0; k < depth; ++k) {
    V right[vectors];
#pragma GCC unroll 4
    for (int j = 0; j < vectors; ++j) right[j] = lanes::load<V>(b + k * s.b_depth + j * lane);
#pragma GCC unroll 16
    for (int i = 0; i < rows; ++i)
#pragma GCC unroll 4
      for (int j = 0; j < vectors; ++j) sum[i][j] += a[i * s.a_row + k * s.a_depth] * right[j];
  }
#pragma GCC unroll 16
  for (int i = 0; i < rows; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < vectors; ++j) lanes::store(c + i * s.c_row + j * lane, sum[i][j]);
}

template <int rows, int vectors, bool add>
TESSERA_INLINE void product_of_columns(const float* a, const float* b, float* c, std::int64_t height,
                                       std::int64_t depth, const Strides& s) {
  std::int64_t i = 0;
  for (; i + rows <= height; i += rows)
    product_of_registers<rows, vectors, add>(a + i * s.a_row, b, c + i * s.c_row, depth, s);
  if constexpr (rows > 1) {
    if (i < height)
      product_of_columns<rows / 2, vectors, add>(a + i * s.a_row, b, c + i * s.c_row, height - i, depth, s);
  }
}

// Right factors are taken in panels of four, two or one vectors of columns. `apart`: each panel is a matrix of its own,
// one behind the other, so that it is read in the order of memory.
enum class Panels { side_by_side, apart };
struct Panel {
  std::int64_t begin, width;
};
TESSERA_INLINE Panel panel_of(std::int64_t column, std::int64_t columns) {
  const std::int64_t fours = columns / (4 * lane) * (4 * lane), twos = columns / (2 * lane) * (2 * lane);
  if (column < fours) return {column / (4 * lane) * (4 * lane), 4 * lane};
  if (column < twos) return {fours, 2 * lane};
  return {twos, lane};
}

struct Extent {
  std::int64_t height, width, depth;
};

// c = a · b, or added to c. The width is in whole vectors.
template <Panels panels, bool add>
TESSERA_VECTORIZE void product(const float* a, const float* b, float* c, Extent e, Strides s) {
  for (std::int64_t j = 0; j < e.width;) {
    const Panel panel = panel_of(j, e.width);
    const float* const right = panels == Panels::apart ? b + j * e.depth : b + j;
    if (panels == Panels::apart) s.b_depth = panel.width;
    if (panel.width == 4 * lane)
      product_of_columns<6, 4, add>(a, right, c + j, e.height, e.depth, s);
    else if (panel.width == 2 * lane)
      product_of_columns<12, 2, add>(a, right, c + j, e.height, e.depth, s);
    else
      product_of_columns<12, 1, add>(a, right, c + j, e.height, e.depth, s);
    j += panel.width;
  }
}

}  // namespace tessera::winograd
