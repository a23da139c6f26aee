#pragma once

#include "tessera/models/registry.h"

namespace tessera {

/// The residual networks of He et al. for large images, with torchvision's structure and parameter names.
/// depth is 18, 34, 50, 101 or 152.
Graph resnet(int depth, const ModelOptions& options);

/// CIFAR-style networks that stay at full resolution for a third of their depth: depth 6n+2 with basic blocks.
Graph resnet_v1(const ModelOptions& options);
/// The same with pre-activation bottleneck blocks: depth 9n+2.
Graph resnet_v2(const ModelOptions& options);

}  // namespace tessera
