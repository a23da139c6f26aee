// Every activation: its value and its derivative, written once for single numbers, for the vectors of the CPU's loops
// and for CUDA. A new one is a line of the table below, and a row in tests/unit/ops/activations_test.cpp.
#pragma once

#include <optional>
#include <string_view>

#include "tessera/graph/activation_math.h"

namespace tessera {

// A(name, value at x, derivative at x, derivative by the value y, or `none` where y does not determine it)
//
// X is the type of x, a number or a vector of numbers; of(c) makes a constant of it; p is the activation's parameter.
// A NaN must come out as a NaN: comparisons are written so that it falls through to x.
#define TESSERA_ACTIVATIONS(A)                                                                                         \
  A(relu, pick(x < of(0), of(0), x), pick(x <= of(0), of(0), of(1)), pick(y <= of(0), of(0), of(1)))                   \
  A(relu6, pick(x < of(0), of(0), pick(x > of(6), of(6), x)), pick(x <= of(0), of(0), pick(x >= of(6), of(0), of(1))), \
    pick(y <= of(0), of(0), pick(y >= of(6), of(0), of(1))))                                                           \
  A(leaky_relu, pick(x < of(0), p * x, x), pick(x <= of(0), p, of(1)), none)                                           \
  A(elu, pick(x < of(0), p * (exponential(x) - of(1)), x), pick(x <= of(0), p * exponential(x), of(1)), none)          \
  A(silu, x* sigmoid_of(x), sigmoid_of(x) * (of(1) + x * (of(1) - sigmoid_of(x))), none)                               \
  A(gelu, x* normal_below(x), normal_below(x) + x * normal_density(x), none)                                           \
  A(gelu_tanh, x* tanh_gate(x), tanh_gate(x) + x * tanh_gate_slope(x), none)                                           \
  A(sigmoid, sigmoid_of(x), sigmoid_of(x) * (of(1) - sigmoid_of(x)), y * (of(1) - y))                                  \
  A(tanh, hyperbolic_tangent(x), of(1) - hyperbolic_tangent(x) * hyperbolic_tangent(x), of(1) - y * y)                 \
  A(hard_sigmoid, hard_gate(x), pick(x <= of(-3), of(0), pick(x >= of(3), of(0), of(1.0 / 6))), none)                  \
  A(hard_swish, x* hard_gate(x), pick(x < of(-3), of(0), pick(x > of(3), of(1), x * of(1.0 / 3) + of(0.5))), none)     \
  A(mish, x* mish_gate(x), mish_gate(x) + x * mish_gate_slope(x), none)                                                \
  A(softsign, x / (of(1) + pick(x < of(0), -x, x)),                                                                    \
    of(1) / ((of(1) + pick(x < of(0), -x, x)) * (of(1) + pick(x < of(0), -x, x))), none)                               \
  A(hard_tanh, pick(x < -p, -p, pick(x > p, p, x)), pick(x <= -p, of(0), pick(x >= p, of(0), of(1))),                  \
    pick(y <= -p, of(0), pick(y >= p, of(0), of(1))))                                                                  \
  A(times, p* x, p, p)                                                                                                 \
  A(plus, x + p, of(1), of(1))

enum class ActivationKind {
#define TESSERA_NAME(name, value, derivative, by_value) name,
  TESSERA_ACTIVATIONS(TESSERA_NAME)
#undef TESSERA_NAME
};

struct Activation {
  ActivationKind kind = ActivationKind::relu;
  /// leaky_relu: the slope below zero; elu: how far it goes below zero; hard_tanh: what it goes up to, and down to;
  /// times, plus: the number.
  double parameter = 0;
  friend bool operator==(const Activation&, const Activation&) = default;
};

constexpr std::string_view to_string(ActivationKind kind) {
  switch (kind) {
#define TESSERA_CASE(name, value, derivative, by_value) \
  case ActivationKind::name:                            \
    return #name;
    TESSERA_ACTIVATIONS(TESSERA_CASE)
#undef TESSERA_CASE
  }
  return {};
}

namespace activation {

/// value(x, p), derivative(x, p) and by_value(y, p) of each activation; found_by_value says whether the latter means
/// anything.
#define TESSERA_STRUCT(name, at_x, slope, slope_by_value)               \
  struct name##_formula {                                               \
    static constexpr ActivationKind kind = ActivationKind::name;        \
    template <class X>                                                  \
    TESSERA_ANYWHERE static X value(X x, X p) {                         \
      const Constant<X> of;                                             \
      (void)of, (void)p;                                                \
      return at_x;                                                      \
    }                                                                   \
    template <class X>                                                  \
    TESSERA_ANYWHERE static X derivative(X x, X p) {                    \
      const Constant<X> of;                                             \
      (void)of, (void)p;                                                \
      return slope;                                                     \
    }                                                                   \
    template <class X>                                                  \
    TESSERA_ANYWHERE static X by_value(X y, X p) {                      \
      const Constant<X> of;                                             \
      const auto none = of(0);                                          \
      (void)of, (void)p, (void)none, (void)y;                           \
      return slope_by_value;                                            \
    }                                                                   \
    static constexpr std::string_view by_value_words = #slope_by_value; \
    static constexpr bool found_by_value = by_value_words != "none";    \
  };
TESSERA_ACTIVATIONS(TESSERA_STRUCT)
#undef TESSERA_STRUCT

/// Calls body(relu_formula{}), say.
template <class Body>
constexpr decltype(auto) dispatch(ActivationKind kind, const Body& body) {
  switch (kind) {
#define TESSERA_CASE(name, value, derivative, by_value) \
  case ActivationKind::name:                            \
    return body(name##_formula{});
    TESSERA_ACTIVATIONS(TESSERA_CASE)
#undef TESSERA_CASE
  }
  return body(relu_formula{});
}

}  // namespace activation

/// Whether the derivative can be read from the value: then backward need not see what the activation was applied to.
constexpr bool derivative_by_value(ActivationKind kind) {
  return activation::dispatch(kind, [](auto a) { return decltype(a)::found_by_value; });
}

}  // namespace tessera
