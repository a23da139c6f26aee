// What the gradient of depthwise weights adds up along a row.
#pragma once

#include <cstdint>

#include "tessera/ops/cpu/isa/tables.h"

namespace tessera {

struct DepthwiseKernels {
  /// sums[b][c] += Σ_j g[j][c]·x[j·step + b·apart + c] for `taps` taps b side by side and all channels c.
  void (*add_taps)(std::int64_t taps, const float* g, const float* x, std::int64_t pixels, std::int64_t channels,
                   std::int64_t step, std::int64_t apart, float* sums);
};
TESSERA_ISA_TABLE(DepthwiseKernels, depthwise_kernels)

}  // namespace tessera
