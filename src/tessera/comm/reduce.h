// The arithmetic of all_reduce.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tessera/comm/types.h"

namespace tessera {

/// Combines elements [begin, end) of the ranks' arrays in the order of the ranks and writes them to each of `results`,
/// which may be among the terms. float, double, bfloat16 (summed in float), int64 and uint8.
void reduce_elements(at::ScalarType dtype, Reduce op, const std::vector<const std::byte*>& terms,
                     const std::vector<std::byte*>& results, std::int64_t begin, std::int64_t end);

}  // namespace tessera
