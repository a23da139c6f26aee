// Very large values, a part at a time.
#pragma once

#include <memory>

#include "tessera/ops/kernel.h"

namespace tessera {

/// The same kernel for an operation of one input that backward needs, run on bands of rows where the input or the
/// output has more than `most` numbers: cuDNN counts in 32 bits, and what it has for larger tensors is slow. Where
/// bands see the same rows of the input, their gradients are added. A band is an eighth of `most` or less, because what
/// it takes comes on top of the rest. `channels`: of the output.
std::unique_ptr<Kernel> in_bands(std::unique_ptr<Kernel> kernel, std::int64_t channels, std::int64_t most);

}  // namespace tessera
