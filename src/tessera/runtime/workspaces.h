// What the kernels of this machine take beside values and gradients, for those who predict memory.
#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/schedule/footprint.h"

namespace tessera {

/// Asks the kernel that would run the step. The graph must outlive the function.
KernelWorkspace kernel_workspaces(const Graph& graph, const at::TensorOptions& activations);

}  // namespace tessera
