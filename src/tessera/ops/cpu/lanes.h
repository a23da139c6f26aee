// Loops over channels-last memory with one set of coefficients a channel, kept in registers.
//
// Memory is seen as periods of `period` adjacent numbers, a multiple of the channels and of the vector length. Number i
// of every period meets coefficient i, so a loop takes a few vectors' worth of coefficients into registers and runs
// them down all periods of a block:
//
//     period 0   [ v0 v1 v2 v3 | v4 ... ]      coefficients [ v0 v1 v2 v3 | v4 ... ]
//     period 1   [ v0 v1 v2 v3 | v4 ... ]                      \_________/
//     period 2   [ v0 v1 v2 v3 | v4 ... ]                       in registers
//
// A loop is a struct with Lane<X> (what stays in registers), begin, step and end, for X a number or a vector of them:
// its arithmetic stands there once, and isa/pointwise.cpp builds it for the vectors of every instruction set.
#pragma once

#include <cstdint>
#include <cstring>

// Nothing that is inlined leaves a symbol behind: see isa/tables.h.
#define TESSERA_INLINE inline __attribute__((always_inline))
#define TESSERA_INLINE_LAMBDA __attribute__((always_inline))

namespace tessera::lanes {

template <class X, class T>
TESSERA_INLINE X load(const T* from) {
  X x;
  std::memcpy(&x, from, sizeof x);
  return x;
}
template <class X, class T>
TESSERA_INLINE void store(T* to, const X& x) {
  std::memcpy(to, &x, sizeof x);
}

/// How many vectors are in flight at once: enough to hide the latency of an addition.
inline constexpr int unroll = 4;

}  // namespace tessera::lanes
