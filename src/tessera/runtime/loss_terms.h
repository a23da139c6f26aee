#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "tessera/graph/operation.h"

namespace tessera {

/// How much labels count: as many as there are, or the sum of their classes' weights. Pixels without a label count
/// nothing.
double weight_of_labels(const at::Tensor& labels, const std::vector<double>& class_weights, LabelKind kind);

}  // namespace tessera
