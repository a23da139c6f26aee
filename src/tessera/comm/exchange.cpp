#include "tessera/comm/exchange.h"

#include <algorithm>

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

// In memory of its own.
Region copied(Communicator& communicator, const Region& region) {
  const Region copy = dense_region(communicator.buffers().take_beside(region), region.dtype, region.sizes);
  copy_region(copy, region);
  return copy;
}

bool same_memory(const Region& a, const Region& b) { return a.data == b.data && a.strides == b.strides; }

}  // namespace

void Movement::wait_for_messages() {
  // Messages help each other along: looking at all of them lets sends complete, and early arrivals be unpacked, while
  // the others are on their way. Whoever is still missing then is waited for, with a time-out.
  constexpr int looks = 64;
  for (int look = 0; look < looks && !test(); ++look) continue;
  for (Arrival& arrival : arrivals_) arrival.pending.wait();
  for (Pending& send : sends_) send.wait();
  sends_.clear();
}

void Movement::finish() {
  wait_for_messages();
  for (const Arrival& arrival : arrivals_) add_region(arrival.target, arrival.staged);
  arrivals_.clear();
}

void Movement::finish_onto(const at::Tensor& gradient_of_have) {
  wait_for_messages();
  if (arrivals_.empty()) return;
  const Region whole = covering("gradient_of_have", gradient_of_have, have_);
  for (const Arrival& arrival : arrivals_) add_region(part_of(whole, have_, arrival.box), arrival.staged);
  arrivals_.clear();
}

bool Movement::test() {
  bool all = true;
  for (Pending& send : sends_) all = send.test() && all;
  for (Arrival& arrival : arrivals_) all = arrival.pending.test() && all;
  return all;
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
  find_first_strips();
}

void Exchange::find_first_strips() {
  std::vector<Strip*> by_size;
  for (Strip& strip : sends_) by_size.push_back(&strip);
  std::stable_sort(by_size.begin(), by_size.end(),
                   [](const Strip* a, const Strip* b) { return a->box.volume() > b->box.volume(); });
  unseen_ = difference(have_, stays_);
  for (Strip* strip : by_size) {
    // The unseen boxes do not overlap, so a strip lies in them whole when its shares add up to it.
    std::int64_t unseen_share = 0;
    for (const Box& box : unseen_) unseen_share += intersect(box, strip->box).volume();
    strip->first = unseen_share == strip->box.volume();
    if (!strip->first) continue;
    std::vector<Box> rest;
    for (const Box& box : unseen_)
      for (const Box& piece : difference(box, strip->box)) rest.push_back(piece);
    unseen_ = std::move(rest);
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
                                   const at::Tensor& gradient_of_have, Tag tag, Into into) const {
  const Region need = covering("gradient_of_need", gradient_of_need, need_),
               have = covering("gradient_of_have", gradient_of_have, have_);
  Movement movement;
  auto& arrivals = movement.arrivals_;
  for (const Strip& strip : sends_) {
    const Region target = part_of(have, have_, strip.box);
    if (into == Into::fresh && strip.first) {
      arrivals.push_back({communicator.receive(target, strip.peer, tag), {}, {}});
      continue;
    }
    const Region staged = dense_region(communicator.buffers().take_beside(target), target.dtype, target.sizes);
    arrivals.push_back({communicator.receive(staged, strip.peer, tag), staged, target});
  }
  // What is put comes before what is added to it.
  std::stable_partition(arrivals.begin(), arrivals.end(), [](const auto& a) { return a.target.count() == 0; });
  for (const Strip& strip : receives_)
    movement.sends_.push_back(communicator.send(part_of(need, need_, strip.box), strip.peer, tag));
  if (into == Into::fresh)
    for (const Box& box : unseen_) zero_region(part_of(have, have_, box));
  if (!stays_.empty()) {
    const Region to = part_of(have, have_, stays_), from = part_of(need, need_, stays_);
    if (!same_memory(to, from)) into == Into::fresh ? copy_region(to, from) : add_region(to, from);
  }
  return movement;
}

Movement Exchange::start_apart(Communicator& communicator, const at::Tensor& source,
                               const std::vector<at::Tensor>& strips, Tag tag) const {
  const Region have = covering("source", source, have_);
  Movement movement;
  for (std::size_t i = 0; i < receives_.size(); ++i)
    movement.arrivals_.push_back({communicator.receive(region_of(strips[i]), receives_[i].peer, tag), {}, {}});
  for (const Strip& strip : sends_)
    movement.sends_.push_back(
        communicator.send(copied(communicator, part_of(have, have_, strip.box)), strip.peer, tag));
  return movement;
}

Movement Exchange::start_transpose_apart(Communicator& communicator, const at::Tensor& gradient_of_need,
                                         Tag tag) const {
  const Region need = covering("gradient_of_need", gradient_of_need, need_);
  Movement movement;
  movement.have_ = have_;
  for (const Strip& strip : sends_) {
    const Region like = part_of(need, need_, strip.box);
    const Region staged = dense_region(communicator.buffers().take_beside(like), like.dtype, like.sizes);
    movement.arrivals_.push_back({communicator.receive(staged, strip.peer, tag), staged, {}, strip.box});
  }
  for (const Strip& strip : receives_)
    movement.sends_.push_back(
        communicator.send(copied(communicator, part_of(need, need_, strip.box)), strip.peer, tag));
  return movement;
}

std::vector<Box> Exchange::received_boxes() const {
  std::vector<Box> boxes;
  for (const Strip& strip : receives_) boxes.push_back(strip.box);
  return boxes;
}

std::int64_t Exchange::bytes_sent(std::int64_t channels, std::int64_t element_bytes) const {
  std::int64_t positions = 0;
  for (const Strip& strip : sends_) positions += strip.box.volume();
  return positions * channels * element_bytes;
}

std::set<Rank> Exchange::peers() const {
  std::set<Rank> out;
  for (const auto* strips : {&sends_, &receives_})
    for (const Strip& strip : *strips) out.insert(strip.peer);
  return out;
}

}  // namespace tessera
