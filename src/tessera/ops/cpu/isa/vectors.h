// The vectors of one instruction set; for the sources of this folder only. TESSERA_ISA and TESSERA_VECTOR_BYTES are
// given by the build.
#pragma once

#include "tessera/ops/cpu/lanes.h"

namespace tessera::TESSERA_ISA {

using lanes::load;
using lanes::store;

template <class T>
struct VectorOf;
template <>
struct VectorOf<float> {
  typedef float type __attribute__((vector_size(TESSERA_VECTOR_BYTES)));
};
template <>
struct VectorOf<double> {
  typedef double type __attribute__((vector_size(TESSERA_VECTOR_BYTES)));
};
template <class T>
using Vector = typename VectorOf<T>::type;
template <class T>
inline constexpr std::int64_t vector_length = TESSERA_VECTOR_BYTES / static_cast<std::int64_t>(sizeof(T));

/// std::min leaves a symbol behind.
TESSERA_INLINE std::int64_t lesser(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

}  // namespace tessera::TESSERA_ISA
