// The passes of pointwise_loops.h for any formula: block by block, each operation over a block that stays in the cache.
#pragma once

#include "tessera/ops/cpu/pointwise_loops.h"

namespace tessera::loops {

void evaluate_any(const std::vector<Affine>& terms, const Formula& formula, const at::Tensor& out);
std::vector<GradientSums> gradient_sums_of_any(const std::vector<at::Tensor>& gradients, const Derivative& derivative,
                                               const std::vector<const Affine*>& summed,
                                               const std::array<at::Tensor, 2>& g);

}  // namespace tessera::loops
