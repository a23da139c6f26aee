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
// its arithmetic stands there once.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>

#include "tessera/ops/cpu/vectorize.h"

namespace tessera::lanes {

#define TESSERA_INLINE inline __attribute__((always_inline))
#define TESSERA_INLINE_LAMBDA __attribute__((always_inline))

template <class T>
struct VectorOf;
template <>
struct VectorOf<float> {
  typedef float type __attribute__((vector_size(64)));
};
template <>
struct VectorOf<double> {
  typedef double type __attribute__((vector_size(64)));
};
template <class T>
using Vector = typename VectorOf<T>::type;
template <class T>
inline constexpr std::int64_t vector_length = 64 / static_cast<std::int64_t>(sizeof(T));

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

template <class T>
std::int64_t period_of(std::int64_t channels) {
  const std::int64_t least = std::lcm(channels, vector_length<T>);
  const std::int64_t wanted = unroll * vector_length<T>;
  return least >= wanted ? least : least * ((wanted + least - 1) / least);
}

/// One coefficient a channel, repeated over a period.
template <class T>
std::vector<T> repeated(const std::vector<double>& values, std::int64_t period) {
  std::vector<T> out(static_cast<std::size_t>(period));
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<T>(values[i % values.size()]);
  return out;
}

template <class X, int count, class Loop>
TESSERA_INLINE void run_down(const Loop& loop, std::int64_t lane, std::int64_t periods, std::int64_t period) {
  constexpr std::int64_t width = static_cast<std::int64_t>(sizeof(X) / sizeof(typename Loop::Number));
  typename Loop::template Lane<X> registers[count];
#pragma GCC unroll 4
  for (int i = 0; i < count; ++i) loop.begin(registers[i], lane + i * width);
  for (std::int64_t p = 0; p < periods; ++p)
#pragma GCC unroll 4
    for (int i = 0; i < count; ++i) loop.step(registers[i], p * period + lane + i * width);
#pragma GCC unroll 4
  for (int i = 0; i < count; ++i) loop.end(registers[i], lane + i * width);
}

/// Runs a loop over n adjacent numbers, which start at the beginning of a period.
template <class Loop>
TESSERA_VECTORIZE void run(const Loop& loop, std::int64_t n, std::int64_t period) {
  using T = typename Loop::Number;
  using V = Vector<T>;
  constexpr std::int64_t width = vector_length<T>;
  const std::int64_t periods = n / period, rest = n % period;
  // A period of a few vectors runs down the whole block from registers. A longer one is taken in the order of memory,
  // which the hardware prefetches; its coefficients then come from the first cache.
  const std::int64_t together = period <= unroll * width ? std::max<std::int64_t>(periods, 1) : 1;
  for (std::int64_t p = 0; p < periods; p += together) {
    const Loop part = loop.shifted(p * period);
    const std::int64_t down = std::min(together, periods - p);
    std::int64_t lane = 0;
    for (; lane + unroll * width <= period; lane += unroll * width) run_down<V, unroll>(part, lane, down, period);
    for (; lane < period; lane += width) run_down<V, 1>(part, lane, down, period);
  }
  // What is left of a row that does not end with a period.
  const std::int64_t base = periods * period;
  std::int64_t lane = 0;
  const Loop last = loop.shifted(base);
  for (; lane + width <= rest; lane += width) run_down<V, 1>(last, lane, 1, period);
  for (; lane < rest; ++lane) run_down<T, 1>(last, lane, 1, period);
}

}  // namespace tessera::lanes
