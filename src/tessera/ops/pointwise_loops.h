// The passes over memory behind pointwise.h, for CPUs. All tensors are slabs of one size: channels-last, rows may be
// apart. Coefficients are one double a channel.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace tessera::loops {

using Channels = std::vector<double>;

/// Sums over all positions, of deviations from `pivot`.
struct Moments {
  std::int64_t count = 0;
  Channels mean;
  Channels m2;  ///< Σ (x - mean)²
};
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
/// positions for every term.
std::vector<GradientSums> gradient_sums(const std::vector<at::Tensor>& gradients, const Mask& mask,
                                        const std::vector<const Affine*>& terms, const at::Tensor& g);

/// dx = a·g + b·(x - mean) + c, with g masked first. dx may be g.
struct GradientCoefficients {
  Channels a, b, c;
};
void affine_gradient(const at::Tensor& g, const Mask& mask, const Affine& term, const GradientCoefficients& k,
                     const at::Tensor& dx);

}  // namespace tessera::loops
