// How the columns of a product's right factor are taken.
#pragma once

#include "tessera/ops/cpu/isa/squares.h"

namespace tessera::TESSERA_ISA {

// What stays in registers: rows × vectors of sums, a row of the right factor and a number of the left one. AVX-512 has
// 32 registers, the others have 16.
constexpr bool many_registers = TESSERA_VECTOR_BYTES == 64;
constexpr int widest = many_registers ? 4 : 2;
constexpr int rows_of_widest = 6, rows_of_two = many_registers ? 12 : 6, rows_of_one = 12;

// Right factors are taken in panels of `widest`, two or one vectors of columns.
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

}  // namespace tessera::TESSERA_ISA
