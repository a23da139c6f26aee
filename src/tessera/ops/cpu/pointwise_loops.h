// The passes over memory behind pointwise.h, for CPUs. All tensors are slabs of one size: channels-last, rows may be
// apart. Coefficients are one double per channel.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <optional>
#include <vector>

#include "tessera/graph/pointwise.h"

namespace tessera::loops {

using Channels = std::vector<double>;

struct Moments {
  std::int64_t count = 0;
  Channels mean;
  Channels m2;  ///< Σ (x - mean)²
};
/// Over all positions of a channel.
Moments moments(const at::Tensor& x);

/// scale·(x - mean) + shift. With mean 0, scale 1 and shift 0 it is x, to the bit.
struct Affine {
  at::Tensor x;
  Channels mean, scale, shift;
};

/// What a step computes of its terms.
struct Formula {
  Combine combine = Combine::sum;
  std::optional<Activation> activation;
  bool is_relu() const { return activation && activation->kind == ActivationKind::relu; }
  /// Sums that are left as they are, or cut off below zero: these have loops of their own.
  bool simple() const { return combine == Combine::sum && (!activation || is_relu()); }
};

/// out = formula(terms). One or two terms.
void evaluate(const std::vector<Affine>& terms, const Formula& formula, const at::Tensor& out);

/// Where the derivative of the activation is found: in the output, or in the terms.
struct Derivative {
  Formula formula;
  at::Tensor output;
  std::vector<const Affine*> terms;
};

/// A term's share of the backward sums.
struct GradientSums {
  Channels g;   ///< Σ g
  Channels gx;  ///< Σ g·(x - mean)
};

/// The gradient of a formula's terms: g = derivative·Σ gradients of a sum; of a product that times the other term, one for
/// each term. Written to `g` where that is defined (it may be one of the gradients): a product writes both, and any
/// formula that is not simple() writes the first. Returns the sums over all positions for every term in `summed`. One or
/// two gradients, at most two terms.
std::vector<GradientSums> gradient_sums(const std::vector<at::Tensor>& gradients, const Derivative& derivative,
                                        const std::vector<const Affine*>& summed, const std::array<at::Tensor, 2>& g);

/// dx = a·g + b·(x - mean) + c, plus `addend` where that is defined. g may be masked by the term itself on the way.
struct GradientCoefficients {
  Channels a, b, c;
};
struct GradientOptions {
  bool mask = false;  ///< where the term is not positive, g counts as zero
  at::Tensor addend = {};
};
/// dx may be g or the addend.
void affine_gradient(const at::Tensor& g, const Affine& term, const GradientCoefficients& k,
                     const GradientOptions& options, const at::Tensor& dx);

}  // namespace tessera::loops
