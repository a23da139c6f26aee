#include "tessera/runtime/loss_terms.h"

#include <ATen/ops/bincount.h>
#include <ATen/ops/tensor.h>

#include "tessera/data/image_source.h"

namespace tessera {

double weight_of_labels(const at::Tensor& labels, const std::vector<double>& class_weights, LabelKind kind) {
  if (class_weights.empty())
    return kind == LabelKind::pixel ? labels.ne(ignored_label).sum().item<double>()
                                    : static_cast<double>(labels.numel());
  // What has no label is of a class behind all others.
  const auto classes = static_cast<std::int64_t>(class_weights.size());
  const at::Tensor counts = at::bincount(labels.flatten(), {}, classes).narrow(0, 0, classes).to(at::kDouble);
  return counts.cpu().dot(at::tensor(class_weights, at::kDouble)).item<double>();
}

}  // namespace tessera
