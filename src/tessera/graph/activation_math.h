// What the table of activations is written with: the same words for a number, for a vector of numbers (gcc's vector
// extension) and for a number on a GPU.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#ifdef __CUDACC__
#define TESSERA_ANYWHERE __host__ __device__ __forceinline__
#else
#define TESSERA_ANYWHERE inline __attribute__((always_inline))
#endif

namespace tessera::activation {

/// The numbers that a vector is made of; of a number itself.
template <class X>
struct NumberIn {
  using type = std::remove_cv_t<std::remove_reference_t<decltype(std::declval<X&>()[0])>>;
};
template <>
struct NumberIn<float> {
  using type = float;
};
template <>
struct NumberIn<double> {
  using type = double;
};
template <class X>
using NumberOf = typename NumberIn<X>::type;

/// A constant in all places of an X.
template <class X>
struct Constant {
  TESSERA_ANYWHERE X operator()(double c) const { return X{} + static_cast<NumberOf<X>>(c); }
};

template <class Mask, class X>
TESSERA_ANYWHERE X pick(Mask mask, X yes, X no) {
  return mask ? yes : no;
}

TESSERA_ANYWHERE float exponential(float x) { return expf(x); }
TESSERA_ANYWHERE double exponential(double x) { return exp(x); }
TESSERA_ANYWHERE float error_function(float x) { return erff(x); }
TESSERA_ANYWHERE double error_function(double x) { return erf(x); }
TESSERA_ANYWHERE float hyperbolic_tangent(float x) { return tanhf(x); }
TESSERA_ANYWHERE double hyperbolic_tangent(double x) { return tanh(x); }

#ifndef __CUDACC__
template <class X>
inline constexpr bool is_float_vector = !std::is_arithmetic_v<X> && std::is_same_v<NumberOf<X>, float>;
template <class X>
inline constexpr bool is_double_vector = !std::is_arithmetic_v<X> && std::is_same_v<NumberOf<X>, double>;

/// Doubles are for checking, not for speed: number by number, with the library's digits.
template <class X, class F>
TESSERA_ANYWHERE X one_by_one(X x, const F& f) {
  for (std::size_t i = 0; i < sizeof(X) / sizeof(NumberOf<X>); ++i) x[i] = f(x[i]);
  return x;
}

// Cephes' expf: 2^n times a polynomial in what is left, to 2 units in the last place. Beyond the range of float the
// ends of the range are taken; a NaN stays one.
template <class X>
requires is_float_vector<X> TESSERA_ANYWHERE X exponential(X x) {
  typedef std::int32_t Whole __attribute__((vector_size(sizeof(X))));
  const Constant<X> of;
  x = pick(x < of(-87.3), of(-87.3), pick(x > of(88.3), of(88.3), x));
  const X magic = of(12582912);  // 1.5 * 2^23: adding it rounds to a whole number
  const X n = (x * of(1.44269504088896341) + magic) - magic;
  const X r = (x - n * of(0.693359375)) + n * of(2.12194440e-4);
  X y = of(1.9875691500e-4);
  for (const double c : {1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1})
    y = y * r + of(c);
  y = y * r * r + r + of(1);
  const Whole power = (__builtin_convertvector(n, Whole) + 127) << 23;
  X scale;
  std::memcpy(&scale, &power, sizeof scale);
  return y * scale;
}
template <class X>
requires is_double_vector<X> TESSERA_ANYWHERE X exponential(X x) {
  return one_by_one(x, [](double v) { return std::exp(v); });
}

// Abramowitz and Stegun 7.1.26: 1.5e-7 at most, about a float's last digit of 1.
template <class X>
requires is_float_vector<X> TESSERA_ANYWHERE X error_function(X x) {
  const Constant<X> of;
  const X a = pick(x < of(0), -x, x), t = of(1) / (of(1) + of(0.3275911) * a);
  X sum = of(1.061405429);
  for (const double c : {-1.453152027, 1.421413741, -0.284496736, 0.254829592}) sum = sum * t + of(c);
  const X y = of(1) - sum * t * exponential(-a * a);
  return pick(x < of(0), -y, y);
}
template <class X>
requires is_double_vector<X> TESSERA_ANYWHERE X error_function(X x) {
  return one_by_one(x, [](double v) { return std::erf(v); });
}

// Near zero a polynomial (Cephes' tanhf): the other form would lose the digits of a small x.
template <class X>
requires is_float_vector<X> TESSERA_ANYWHERE X hyperbolic_tangent(X x) {
  const Constant<X> of;
  const X s = x * x, a = pick(x < of(0), -x, x);
  X near = of(-5.70498872745e-3);
  for (const double c : {2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1})
    near = near * s + of(c);
  near = near * s * x + x;
  const X far = of(1) - of(2) / (exponential(of(2) * a) + of(1));
  return pick(a < of(0.625), near, pick(x < of(0), -far, far));
}
template <class X>
requires is_double_vector<X> TESSERA_ANYWHERE X hyperbolic_tangent(X x) {
  return one_by_one(x, [](double v) { return std::tanh(v); });
}
#endif

template <class X>
TESSERA_ANYWHERE X sigmoid_of(X x) {
  const Constant<X> of;
  return of(1) / (of(1) + exponential(-x));
}

/// Of the standard normal distribution: what lies below x, and the density there.
template <class X>
TESSERA_ANYWHERE X normal_below(X x) {
  const Constant<X> of;
  return of(0.5) * (of(1) + error_function(x * of(0.70710678118654752440)));
}
template <class X>
TESSERA_ANYWHERE X normal_density(X x) {
  const Constant<X> of;
  return of(0.39894228040143267794) * exponential(of(-0.5) * x * x);
}

/// The same by tanh, as some networks approximate it, and its derivative.
template <class X>
TESSERA_ANYWHERE X tanh_of_cubic(X x) {
  const Constant<X> of;
  return hyperbolic_tangent(of(0.79788456080286535588) * (x + of(0.044715) * x * x * x));
}
template <class X>
TESSERA_ANYWHERE X tanh_gate(X x) {
  const Constant<X> of;
  return of(0.5) * (of(1) + tanh_of_cubic(x));
}
template <class X>
TESSERA_ANYWHERE X tanh_gate_slope(X x) {
  const Constant<X> of;
  const X t = tanh_of_cubic(x);
  return of(0.5 * 0.79788456080286535588) * (of(1) - t * t) * (of(1) + of(3 * 0.044715) * x * x);
}

/// From 0 at -3 to 1 at 3, straight.
template <class X>
TESSERA_ANYWHERE X hard_gate(X x) {
  const Constant<X> of;
  const X up = x + of(3);
  return pick(up < of(0), of(0), pick(up > of(6), of(6), up)) * of(1.0 / 6);
}

/// tanh(log(1 + e^x)) without the logarithm: with n = e^x (e^x + 2) it is n / (n + 2). From 20 on it is 1 in any type.
template <class X>
TESSERA_ANYWHERE X exponential_to_20(X x) {
  const Constant<X> of;
  return exponential(pick(x > of(20), of(20), x));
}
template <class X>
TESSERA_ANYWHERE X mish_gate(X x) {
  const Constant<X> of;
  const X e = exponential_to_20(x), n = e * (e + of(2));
  return n / (n + of(2));
}
template <class X>
TESSERA_ANYWHERE X mish_gate_slope(X x) {
  const Constant<X> of;
  const X e = exponential_to_20(x), d = e * (e + of(2)) + of(2);
  return of(4) * e * (e + of(1)) / (d * d);
}

}  // namespace tessera::activation
