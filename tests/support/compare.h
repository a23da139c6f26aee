// How tests compare tensors: relative to the size of what is expected, never by a sum in which errors could cancel.
#pragma once

#include <torch/types.h>

#include <cmath>
#include <limits>

namespace tessera::test {

/// ‖a - b‖ / ‖b‖; absolute where b is zero; infinite where anything is not finite or the shapes differ.
inline double relative_error(const at::Tensor& ours, const at::Tensor& expected) {
  if (!ours.defined() || !expected.defined() || ours.sizes() != expected.sizes())
    return std::numeric_limits<double>::infinity();
  const at::Tensor a = ours.detach().to(at::kDouble), b = expected.detach().to(at::kDouble);
  const double difference = (a - b).norm().item<double>(), scale = b.norm().item<double>();
  if (!std::isfinite(difference) || !std::isfinite(scale)) return std::numeric_limits<double>::infinity();
  return scale > 0 ? difference / scale : difference;
}

}  // namespace tessera::test
