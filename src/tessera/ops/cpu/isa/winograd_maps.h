// The linear maps of Winograd's convolution along one axis, for vectors of channels; see winograd.h. Applied to the
// columns and then to the rows of a patch. Each takes the distance between its inputs and
// between its outputs.
#pragma once

#include "tessera/ops/cpu/isa/squares.h"

namespace tessera::TESSERA_ISA {

// The transforms come from polynomials through 0, ±p, ±q and infinity. These two keep the rounding error lower than the
// textbook's 1 and 2 do: the transforms' entries are nearer to each other.
constexpr float p = 0.625F, q = 1.5F;
constexpr float p2 = p * p, q2 = q * q, p3 = p2 * p, q3 = q2 * q;

// Bᵀ: six inputs to six values.
TESSERA_INLINE void to_points(const V* x, std::int64_t xs, V* y, std::int64_t ys) {
  const V even_p = x[4 * xs] - q2 * x[2 * xs], odd_p = x[3 * xs] - q2 * x[xs];
  const V even_q = x[4 * xs] - p2 * x[2 * xs], odd_q = x[3 * xs] - p2 * x[xs];
  y[0] = even_p - p2 * (x[2 * xs] - q2 * x[0]);
  y[ys] = even_p + p * odd_p;
  y[2 * ys] = even_p - p * odd_p;
  y[3 * ys] = even_q + q * odd_q;
  y[4 * ys] = even_q - q * odd_q;
  y[5 * ys] = x[5 * xs] - q2 * x[3 * xs] - p2 * odd_p;
}

// Aᵀ: six values to four outputs.
TESSERA_INLINE void from_points(const V* m, std::int64_t ms, V* y, std::int64_t ys) {
  const V sum_p = m[ms] + m[2 * ms], difference_p = m[ms] - m[2 * ms];
  const V sum_q = m[3 * ms] + m[4 * ms], difference_q = m[3 * ms] - m[4 * ms];
  y[0] = m[0] + sum_p + sum_q;
  y[ys] = p * difference_p + q * difference_q;
  y[2 * ys] = p2 * sum_p + q2 * sum_q;
  y[3 * ys] = p3 * difference_p + q3 * difference_q + m[5 * ms];
}

// A: the transpose of that.
TESSERA_INLINE void gradient_to_points(const V* y, std::int64_t ys, V* m, std::int64_t ms) {
  const V even_p = y[0] + p2 * y[2 * ys], odd_p = p * y[ys] + p3 * y[3 * ys];
  const V even_q = y[0] + q2 * y[2 * ys], odd_q = q * y[ys] + q3 * y[3 * ys];
  m[0] = y[0];
  m[ms] = even_p + odd_p;
  m[2 * ms] = even_p - odd_p;
  m[3 * ms] = even_q + odd_q;
  m[4 * ms] = even_q - odd_q;
  m[5 * ms] = y[3 * ys];
}

// G: three weights to six values.
constexpr float g0 = 1 / (p2 * q2), gp = 1 / (2 * p2 * (p2 - q2)), gq = 1 / (2 * q2 * (q2 - p2));
TESSERA_INLINE void weights_to_points(const V* w, std::int64_t ws, V* u, std::int64_t us) {
  const V even_p = gp * (w[0] + p2 * w[2 * ws]), odd_p = (gp * p) * w[ws];
  const V even_q = gq * (w[0] + q2 * w[2 * ws]), odd_q = (gq * q) * w[ws];
  u[0] = g0 * w[0];
  u[us] = even_p + odd_p;
  u[2 * us] = even_p - odd_p;
  u[3 * us] = even_q + odd_q;
  u[4 * us] = even_q - odd_q;
  u[5 * us] = w[2 * ws];
}

// Gᵀ: the transpose of that.
TESSERA_INLINE void weights_from_points(const V* u, std::int64_t us, V* w, std::int64_t ws) {
  const V sum_p = gp * (u[us] + u[2 * us]), sum_q = gq * (u[3 * us] + u[4 * us]);
  w[0] = g0 * u[0] + sum_p + sum_q;
  w[ws] = (gp * p) * (u[us] - u[2 * us]) + (gq * q) * (u[3 * us] - u[4 * us]);
  w[2 * ws] = p2 * sum_p + q2 * sum_q + u[5 * us];
}

}  // namespace tessera::TESSERA_ISA
