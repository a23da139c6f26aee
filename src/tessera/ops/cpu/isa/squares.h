// Weights in blocks of lane×lane numbers, whichever way they lie in memory.
#pragma once

#include "tessera/ops/cpu/isa/vectors.h"

namespace tessera::TESSERA_ISA {

using V = Vector<float>;
constexpr std::int64_t lane = vector_length<float>;

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

// A part of a matrix, at most lane×lane.
struct Square {
  std::int64_t rows, columns, row_stride, column_stride;
  TESSERA_INLINE bool full() const { return rows == lane && columns == lane; }
};

// Copies it to rows that are `apart` numbers apart. What a square that is not full lacks is not written.
TESSERA_INLINE void load_square(const float* from, const Square& s, float* to, std::int64_t apart) {
  if (s.full() && s.column_stride == 1) {
#pragma GCC unroll 16
    for (int i = 0; i < lane; ++i) store(to + i * apart, load<V>(from + i * s.row_stride));
  } else if (s.full() && s.row_stride == 1) {
    V x[lane];
#pragma GCC unroll 16
    for (int j = 0; j < lane; ++j) x[j] = load<V>(from + j * s.column_stride);
    transpose(x);
#pragma GCC unroll 16
    for (int i = 0; i < lane; ++i) store(to + i * apart, x[i]);
  } else {
    for (std::int64_t i = 0; i < s.rows; ++i)
      for (std::int64_t j = 0; j < s.columns; ++j) to[i * apart + j] = from[i * s.row_stride + j * s.column_stride];
  }
}

// The transpose: adds such rows to it.
TESSERA_INLINE void add_square(float* to, const Square& s, const float* from, std::int64_t apart) {
  if (s.full() && s.row_stride == 1) {
    V x[lane];
#pragma GCC unroll 16
    for (int i = 0; i < lane; ++i) x[i] = load<V>(from + i * apart);
    transpose(x);
#pragma GCC unroll 16
    for (int j = 0; j < lane; ++j) store(to + j * s.column_stride, load<V>(to + j * s.column_stride) + x[j]);
  } else {
    for (std::int64_t i = 0; i < s.rows; ++i)
      for (std::int64_t j = 0; j < s.columns; ++j) to[i * s.row_stride + j * s.column_stride] += from[i * apart + j];
  }
}

}  // namespace tessera::TESSERA_ISA
