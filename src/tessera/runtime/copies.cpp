#include "tessera/runtime/copies.h"

#include <ATen/ops/zeros.h>

namespace tessera {

Copies::Copies(std::unique_ptr<Communicator> group, at::DeviceType device)
    : group_(std::move(group)), common_(group_ && device == at::kCPU && group_->shares_memory()) {}

at::Tensor Copies::zeros(std::int64_t elements, const at::TensorOptions& options) const {
  if (!common_) return at::zeros({elements}, options);
  const Rank root{next_root_++ % count()};
  return group_->share(group_->rank() == root ? at::zeros({elements}, options) : at::Tensor(), root);
}

Interval Copies::share(std::int64_t elements) const {
  if (!common_) return {0, elements};
  // Two copies never write to one cache line: so many elements are at least one, whatever their type.
  constexpr std::int64_t line = 64;
  const auto begin_of = [&](std::int64_t copy) {
    return copy == count() ? elements : elements * copy / count() / line * line;
  };
  return {begin_of(group_->rank().value), begin_of(group_->rank().value + 1)};
}

void Copies::settle() const {
  if (common_) group_->barrier();
}

}  // namespace tessera
