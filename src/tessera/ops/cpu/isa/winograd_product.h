// Matrix products of Winograd's convolution; see winograd.h.
#pragma once

#include "tessera/ops/cpu/isa/vectors.h"
#include "tessera/ops/cpu/isa/winograd.h"

namespace tessera::TESSERA_ISA {

using V = Vector<float>;
constexpr std::int64_t lane = vector_length<float>;
using winograd::Extent;
using winograd::Strides;

// What stays in registers: rows × vectors of sums, a row of the right factor and a number of the left one. AVX-512 has
// 32 registers, the others have 16.
constexpr bool many_registers = TESSERA_VECTOR_BYTES == 64;
constexpr int widest = many_registers ? 4 : 2;
constexpr int rows_of_widest = 6, rows_of_two = many_registers ? 12 : 6, rows_of_one = 12;

template <int rows, int vectors, bool add>
TESSERA_INLINE void product_of_registers(const float* a, const float* b, float* c, std::int64_t depth,
                                         const Strides& s) {
  V sum[rows][vectors];
#pragma GCC unroll 16
  for (int i = 0; i < rows; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < vectors; ++j) sum[i][j] = add ? load<V>(c + i * s.c_row + j * lane) : V{};
  for (std::int64_t k = 0; k < depth; ++k) {
    V right[vectors];
#pragma GCC unroll 4
    for (int j = 0; j < vectors; ++j) right[j] = load<V>(b + k * s.b_depth + j * lane);
#pragma GCC unroll 16
    for (int i = 0; i < rows; ++i)
#pragma GCC unroll 4
      for (int j = 0; j < vectors; ++j) sum[i][j] += a[i * s.a_row + k * s.a_depth] * right[j];
  }
#pragma GCC unroll 16
  for (int i = 0; i < rows; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < vectors; ++j) store(c + i * s.c_row + j * lane, sum[i][j]);
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

// Right factors are taken in panels of `widest`, two or one vectors of columns. `apart`: each panel is a matrix of its
// own, one behind the other, so that it is read in the order of memory.
enum class Panels { side_by_side, apart };
struct Panel {
  std::int64_t begin, width;
};
TESSERA_INLINE Panel panel_of(std::int64_t column, std::int64_t columns) {
  constexpr std::int64_t full = widest * lane;
  const std::int64_t fulls = columns / full * full, twos = columns / (2 * lane) * (2 * lane);
  if (column < fulls) return {column / full * full, full};
  if (column < twos) return {fulls, 2 * lane};
  return {twos, lane};
}

template <Panels panels, bool add>
void product(const float* a, const float* b, float* c, Extent e, Strides s) {
  for (std::int64_t j = 0; j < e.width;) {
    const Panel panel = panel_of(j, e.width);
    const float* const right = panels == Panels::apart ? b + j * e.depth : b + j;
    if (panels == Panels::apart) s.b_depth = panel.width;
    if (panel.width == widest * lane)
      product_of_columns<rows_of_widest, widest, add>(a, right, c + j, e.height, e.depth, s);
    else if (panel.width == 2 * lane)
      product_of_columns<rows_of_two, 2, add>(a, right, c + j, e.height, e.depth, s);
    else
      product_of_columns<rows_of_one, 1, add>(a, right, c + j, e.height, e.depth, s);
    j += panel.width;
  }
}

}  // namespace tessera::TESSERA_ISA
