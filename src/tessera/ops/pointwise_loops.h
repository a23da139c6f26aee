// The passes over memory behind pointwise.h, for CPUs. All tensors are slabs of one size: channels-last, rows may be
// apart. Coefficients are one double a channel.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

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

/// out = Σ terms, or the positive part of it. One or two terms.
void affine_sum(const std::vector<Affine>& terms, bool relu, const at::Tensor& out);

/// Where the gradient passes: everywhere, where `output` is positive, or where the affine `input` is.
struct Mask {
  at::Tensor output;
  const Affine* input = nullptr;
};

/// A term's share of the backward sums.
struct GradientSums {
  Channels g;   ///< Σ g
  Channels gx;  ///< Σ g·(x - mean)
};

/// g = mask·Σ gradients, written to `g` if that is defined (it may be one of the gradients); returns the sums over all
/// positions for every term. One or two gradients, at most two terms.
std::vector<GradientSums> gradient_sums(const std::vector<at::Tensor>& gradients, const Mask& mask,
                                        const std::vector<const Affine*>& terms, const at::Tensor& g);

/// dx = a·g + b·(x - mean) + c, plus `addend` where that is defined. g may be masked by the term itself on the way.
struct GradientCoefficients {
  Channels a, b, c;
};
struct GradientOptions {
  bool mask = false;
  at::Tensor addend = {};
};
/// dx may be g or the addend.
void affine_gradient(const at::Tensor& g, const Affine& term, const GradientCoefficients& k,
                     const GradientOptions& options, const at::Tensor& dx);

}  // namespace tessera::loops
