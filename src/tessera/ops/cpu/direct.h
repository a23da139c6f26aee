// Convolutions as sums of matrix products: float32 on the CPU, square windows without dilation or groups.
//
// The pixels that a window sees along a row lie side by side in channels-last memory, and so do those of the next
// window, a stride further on. So a row of windows is a matrix already, whose rows overlap, and a row of outputs is
//
//     Σ over the window's rows   [pixels × (taps · in)] · [(taps · in) × out]
//
// with no copy of the input but at the edges. The gradient of the weights is the same with the first factor transposed.
// That of the input is the same with the output's gradient for an input; with a stride, pixels that are a stride apart
// see the same taps and make a product of their own.
#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/ops/slab.h"

namespace tessera {

/// Numbers that it takes for itself meanwhile, about.
std::int64_t direct_scratch(std::int64_t in_channels, std::int64_t out_channels, std::int64_t side, std::int64_t stride,
                            bool of_weights);

/// out = weights ⋆ in (+ bias, unless it is null). Weights are [out channels, in channels, side, side], in any order of
/// dimensions.
void direct_forward(const Rows<const float>& in, Origin origin, std::int64_t stride, const at::Tensor& weights,
                    const float* bias, const Rows<float>& out);
/// The transpose of that in `in`: what a gradient of the output gives to the input. The origin is forward's.
void direct_input_gradient(const Rows<const float>& gradient, Origin origin, std::int64_t stride,
                           const at::Tensor& weights, const Rows<float>& out);
/// Adds the gradient of the weights to `sum`, which has the sizes of the weights.
void direct_weight_gradient(const Rows<const float>& in, Origin origin, std::int64_t stride,
                            const Rows<const float>& gradient, const at::Tensor& sum);

}  // namespace tessera
