#include "tessera/runtime/loss_terms.h"

#include <ATen/ops/tensor.h>

#include "tessera/data/image_source.h"

namespace tessera {

double weight_of_labels(const at::Tensor& labels, const std::vector<double>& class_weights, LabelKind kind) {
  at::Tensor counted = labels.flatten();
  if (kind == LabelKind::pixel) counted = counted.masked_select(counted.ne(ignored_label));
  if (class_weights.empty()) return static_cast<double>(counted.numel());
  return at::tensor(class_weights, at::kDouble).to(counted.device()).take(counted.to(at::kLong)).sum().item<double>();
}

}  // namespace tessera
