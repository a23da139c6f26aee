// Memory that a kernel works in.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "tessera/ops/cpu/isa/product.h"

namespace tessera {

inline at::Tensor floats(std::int64_t n) { return at::empty({n}, at::TensorOptions().dtype(at::kFloat)); }

/// So many numbers, and up to the end of their last vector.
inline std::int64_t whole_vectors(std::int64_t numbers) {
  const std::int64_t lane = product_kernels().lane;
  return (numbers + lane - 1) / lane * lane;
}

}  // namespace tessera
