#include "tessera/comm/exchange.h"

#include "tessera/base/error.h"

namespace tessera {
namespace {

/// The part `box` of a region that covers `whole`.
Region part_of(Region region, const Box& whole, const Box& box) {
  constexpr std::array<Axis, 3> axes{Axis::batch, Axis::height, Axis::width};
  std::int64_t offset = 0;
  for (std::size_t i = 0; i < 3; ++i) {
    region.sizes[i] = box[axes[i]].size();
    offset += (box[axes[i]].begin - whole[axes[i]].begin) * region.strides[i];
  }
  region.data += offset * region.element_bytes();
  return region;
}

/// The region of a tensor that must cover `box`.
Region covering(const char* what, const at::Tensor& tensor, const Box& box) {
  if (box.empty()) return {};
  ensure(tensor.defined() && tensor.dim() == 4 && tensor.size(0) == box.batch().size() &&
             tensor.size(2) == box.height().size() && tensor.size(3) == box.width().size(),
         what, " does not cover its box ", box, ": its sizes are ",
         tensor.defined() ? tensor.sizes() : at::IntArrayRef{});
  return region_of(tensor);
}

bool same_memory(const Region& a, const Region& b) { return a.data == b.data && a.strides == b.strides; }

}  // namespace

void Movement::finish() {
  // Messages help each other along: looking at all of them lets sends complete, and early arrivals be unpacked, while
  // the others are on their way. Whoever is still missing then is waited for, with a time-out.
  constexpr int looks = 64;
  for (int look = 0, missing = 1; look < looks && missing > 0; ++look) {
    missing = 0;
    for (Pending& send : sends_) missing += send.test() ? 0 : 1;
    for (Arrival& arrival : arrivals_) missing += arrival.pending.test() ? 0 : 1;
  }
  for (Arrival& arrival : arrivals_) {
    arrival.pending.wait();
    add_region(arrival.target, arrival.staged);
  }
  arrivals_.clear();
  for (Pending& send : sends_) send.wait();
  sends_.clear();
}

Exchange::Exchange(const Partition& have, const std::vector<Box>& need, Rank me) {
  const auto ranks = static_cast<int>(have.boxes.size());
  ensure(need.size() == have.boxes.size() && 0 <= me.value && me.value < ranks, "an exchange of ", ranks, " owned and ",
         need.size(), " needed boxes on ", me);
  const auto at = [](const std::vector<Box>& boxes, int rank) { return boxes[static_cast<std::size_t>(rank)]; };
  have_ = at(have.boxes, me.value);
  need_ = at(need, me.value);
  for (const Box& box : {have_, need_})
    ensure(box.empty() || box[Axis::depth].size() == 1, "box ", box, " is deeper than an image");
  stays_ = intersect(have_, need_);
  for (int peer = 0; peer < ranks; ++peer) {
    if (peer == me.value) continue;
    if (const Box out = intersect(have_, at(need, peer)); !out.empty()) sends_.push_back({Rank{peer}, out});
    if (const Box in = intersect(at(have.boxes, peer), need_); !in.empty()) receives_.push_back({Rank{peer}, in});
  }
}

Movement Exchange::start(Communicator& communicator, const at::Tensor& source, const at::Tensor& destination,
                         Tag tag) const {
  const Region have = covering("source", source, have_), need = covering("destination", destination, need_);
  Movement movement;
  for (const Strip& strip : receives_)
    movement.arrivals_.push_back({communicator.receive(part_of(need, need_, strip.box), strip.peer, tag), {}, {}});
  for (const Strip& strip : sends_)
    movement.sends_.push_back(communicator.send(part_of(have, have_, strip.box), strip.peer, tag));
  if (!stays_.empty()) {
    const Region to = part_of(need, need_, stays_), from = part_of(have, have_, stays_);
    if (!same_memory(to, from)) copy_region(to, from);
  }
  return movement;
}

Movement Exchange::start_transpose(Communicator& communicator, const at::Tensor& gradient_of_need,
                                   const at::Tensor& gradient_of_have, Tag tag) const {
  const Region need = covering("gradient_of_need", gradient_of_need, need_),
               have = covering("gradient_of_have", gradient_of_have, have_);
  Movement movement;
  for (const Strip& strip : sends_) {
    const Region target = part_of(have, have_, strip.box);
    const Region staged = dense_region(communicator.buffers().take(target.bytes()), target.dtype, target.sizes);
    movement.arrivals_.push_back({communicator.receive(staged, strip.peer, tag), staged, target});
  }
  for (const Strip& strip : receives_)
    movement.sends_.push_back(communicator.send(part_of(need, need_, strip.box), strip.peer, tag));
  if (!stays_.empty()) {
    const Region to = part_of(have, have_, stays_), from = part_of(need, need_, stays_);
    if (!same_memory(to, from)) add_region(to, from);
  }
  return movement;
}

std::int64_t Exchange::bytes_sent(std::int64_t channels, std::int64_t element_bytes) const {
  std::int64_t positions = 0;
  for (const Strip& strip : sends_) positions += strip.box.volume();
  return positions * channels * element_bytes;
}

}  // namespace tessera
