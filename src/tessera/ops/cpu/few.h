// Products of few windows with many weights: float32 on the CPU. What takes time is to read the weights, so they are
// read where they lie, and once.
//
//     windows [pixels × taps·in]   weights [out × taps·in]   outputs [pixels × out]       all without gaps
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera {

/// Whether windows of so many numbers can be taken: they must be whole vectors.
bool few_can(std::int64_t taps_and_channels);

/// outputs = windows · weightsᵀ
at::Tensor few_forward(const at::Tensor& windows, const at::Tensor& weights);
/// Numbers that it takes beside its result.
std::int64_t few_forward_scratch(std::int64_t pixels, std::int64_t taps_and_channels);
/// What a gradient of the outputs gives to the windows: gradient · weights
at::Tensor few_input_gradient(const at::Tensor& gradient, const at::Tensor& weights);
/// sum += gradientᵀ · windows
void few_weight_gradient(const at::Tensor& gradient, const at::Tensor& windows, const at::Tensor& sum);

}  // namespace tessera
