#include "tessera/runtime/gradient_sync.h"

namespace tessera {
namespace {

// Large enough that a message's latency does not count, small enough that the first leaves early.
constexpr std::int64_t bucket_bytes = 4 << 20;

}  // namespace

GradientSync::GradientSync(at::Tensor sums, std::unique_ptr<Communicator> copies, GradSync how, int node)
    : sums_(std::move(sums)), copies_(std::move(copies)), started_from_(sums_.size(0)) {
  if (!copies_ || how != GradSync::hierarchical) return;
  node_ = copies_->split(node, copies_->rank().value);
  masters_ = copies_->split(node_->rank() == Rank{0} ? 0 : -1, copies_->rank().value);
}

void GradientSync::complete_from(std::int64_t offset) {
  if (!copies_) return;
  const std::int64_t elements = bucket_bytes / static_cast<std::int64_t>(sums_.element_size());
  if (started_from_ - offset < elements) return;
  start(sums_.narrow(0, offset, started_from_ - offset));
  started_from_ = offset;
}

void GradientSync::finish() {
  if (copies_ && started_from_ > 0) start(sums_.narrow(0, 0, started_from_));
  for (Pending& pending : pending_) pending.wait();
  pending_.clear();
  started_from_ = sums_.size(0);
}

void GradientSync::start(const at::Tensor& bucket) {
  if (!node_) {
    pending_.push_back(copies_->all_reduce(bucket));
    return;
  }
  // Each node's master collects, masters all-reduce, masters give out: little crosses the network, but one waits for
  // the other.
  node_->all_reduce(bucket).wait();
  if (masters_) masters_->all_reduce(bucket).wait();
  node_->broadcast(bucket, Rank{0}).wait();
}

}  // namespace tessera
