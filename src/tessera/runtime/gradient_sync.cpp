#include "tessera/runtime/gradient_sync.h"

namespace tessera {
namespace {

// Large enough that a message's latency does not count, small enough that the first leaves early.
constexpr std::int64_t bucket_bytes = 4 << 20;

}  // namespace

GradientSync::GradientSync(at::Tensor sums, Communicator* copies, GradSync how, int node)
    : sums_(std::move(sums)), copies_(copies), started_from_(sums_.size(0)) {
  if (!copies_) return;
  if (how != GradSync::hierarchical) {
    phases_ = {[this](const at::Tensor& bucket) { return copies_->all_reduce(bucket); }};
    return;
  }
  // Each node's master collects, masters all-reduce, masters give out: little crosses the network.
  node_ = copies_->split(node, copies_->rank().value);
  back_ = copies_->split(node, copies_->rank().value);
  masters_ = copies_->split(node_->rank() == Rank{0} ? 0 : -1, copies_->rank().value);
  phases_ = {[this](const at::Tensor& bucket) { return node_->all_reduce(bucket); },
             [this](const at::Tensor& bucket) { return masters_ ? masters_->all_reduce(bucket) : Pending(); },
             [this](const at::Tensor& bucket) { return back_->broadcast(bucket, Rank{0}); }};
}

void GradientSync::complete_from(std::int64_t offset) {
  if (!copies_) return;
  const std::int64_t elements = bucket_bytes / static_cast<std::int64_t>(sums_.element_size());
  while (started_from_ - offset >= elements) start(elements);
  advance([](Pending& pending) { return pending.test(); });
}

void GradientSync::finish() {
  // The same buckets on every copy, also on one that had no backward to complete them (of Chimera's one micro nothing
  // goes up), or one that was not told of all.
  complete_from(0);
  if (copies_ && started_from_ > 0) start(started_from_);
  advance([](Pending& pending) {
    pending.wait();
    return true;
  });
  started_from_ = sums_.size(0);
}

void GradientSync::start(std::int64_t elements) {
  started_from_ -= elements;
  const at::Tensor data = sums_.narrow(0, started_from_, elements);
  buckets_.push_back({data, phases_[0](data)});
}

template <class Done>
void GradientSync::advance(const Done& done) {
  // A bucket goes on only when all before it are through: on every rank the collectives of a phase then have one order.
  while (!buckets_.empty() && done(buckets_.front().pending)) {
    Bucket& bucket = buckets_.front();
    if (++bucket.phase < phases_.size())
      bucket.pending = phases_[bucket.phase](bucket.data);
    else
      buckets_.pop_front();
  }
}

}  // namespace tessera
