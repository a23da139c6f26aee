// 3×3 convolutions with a quarter of the multiplications, after Winograd (Lavin and Gray, "Fast algorithms for
// convolutional neural networks", 2016): float32 on the CPU.
//
// The output is cut into patches of 4×4 pixels. A patch, the 6×6 inputs that it sees and the 3×3 weights are each taken
// to 6×6 values by a small linear transform, and there the convolution is a product, value by value:
//
//     6×6 inputs  ──Bᵀ·B──▶ 36 ╲
//                               ▶ 36 matrix products over the channels ──Aᵀ·A──▶ 4×4 outputs
//     3×3 weights ──G·Gᵀ──▶ 36 ╱
//
// Memory is read and written where it lies: rows may be any distance apart, and what is outside of the input counts as
// zero. So padding, margins and parts of larger buffers need no copies.
#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/ops/slab.h"

namespace tessera {

/// Whether it is faster than a direct convolution. Only a matter of speed: it always works.
bool winograd_pays(std::int64_t in_channels, std::int64_t out_channels, std::int64_t samples, std::int64_t rows,
                   std::int64_t columns);

/// Numbers that it takes for itself meanwhile.
std::int64_t winograd_scratch(std::int64_t in_channels, std::int64_t out_channels, std::int64_t samples,
                              std::int64_t rows, std::int64_t columns, bool of_weights);

/// out = weights ⋆ in (+ bias, unless it is null). Weights are [out channels, in channels, 3, 3], in any order of
/// dimensions without gaps.
void winograd_forward(const Rows<const float>& in, Origin origin, const at::Tensor& weights, const float* bias,
                      const Rows<float>& out);
/// The transpose of that in `in`: what a gradient of the output gives to the input. The origin is forward's.
void winograd_input_gradient(const Rows<const float>& gradient, Origin origin, const at::Tensor& weights,
                             const Rows<float>& out);
/// Adds the gradient of the weights to `sum`, which has the sizes of the weights.
void winograd_weight_gradient(const Rows<const float>& in, Origin origin, const Rows<const float>& gradient,
                              const at::Tensor& sum);

}  // namespace tessera
