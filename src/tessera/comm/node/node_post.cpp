#include "tessera/comm/node/node_post.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera {
namespace {

std::int64_t whole_pages(std::int64_t bytes) {
  return (bytes + SharedPart::page - 1) / SharedPart::page * SharedPart::page;
}

}  // namespace

NodePost::NodePost(std::vector<std::unique_ptr<SharedPart>> parts, int me)
    : parts_(std::move(parts)),
      me_(me),
      blocks_end_(SharedPart::page + whole_pages(static_cast<std::int64_t>(parts_.size() * sizeof(Lane)))),
      unsent_(parts_.size()) {}

std::int64_t NodePost::take_block(std::int64_t bytes, int readers) {
  Block* best = nullptr;
  for (Block& block : blocks_)
    // A block of twice the size is left for the messages that need it.
    if (bytes <= block.bytes && block.bytes <= std::max(SharedPart::page, 2 * bytes) &&
        (best == nullptr || block.bytes < best->bytes) &&
        head(me_, block.offset).readers.load(std::memory_order_acquire) == 0)
      best = &block;
  if (best == nullptr) {
    const std::int64_t whole = whole_pages(static_cast<std::int64_t>(sizeof(BlockHead)) + bytes);
    ensure(blocks_end_ + whole <= part(me_).size(), "messages of more than ", part(me_).size(),
           " bytes are under way from one rank to others on its machine");
    best = &blocks_.emplace_back(Block{blocks_end_, whole - static_cast<std::int64_t>(sizeof(BlockHead))});
    blocks_end_ += whole;
  }
  head(me_, best->offset).readers.store(readers, std::memory_order_relaxed);
  return best->offset;
}

std::byte* NodePost::data(int owner, std::int64_t block) const {
  return part(owner).at(block + static_cast<std::int64_t>(sizeof(BlockHead)));
}

void NodePost::release(int owner, std::int64_t block) const {
  if (block >= 0) head(owner, block).readers.fetch_sub(1, std::memory_order_release);
}

bool NodePost::put(int to, const Letter& letter) {
  Lane& way = lane(me_, to);
  const std::uint64_t written = way.written.load(std::memory_order_relaxed);
  if (written - way.read.load(std::memory_order_acquire) == Lane::capacity) return false;
  way.letters[written % Lane::capacity] = letter;
  way.written.store(written + 1, std::memory_order_release);
  Box& box = box_of(to);
  box.rings.fetch_add(1);
  // Either the receiver sees the ring before it sleeps, or it is seen to sleep here.
  if (box.asleep.load() != 0 && box.asleep.exchange(0) != 0)
    syscall(SYS_futex, &box.rings, FUTEX_WAKE, 1, nullptr, nullptr, 0);
  return true;
}

void NodePost::send(int to, const Letter& letter) {
  if (!sent(to) || !put(to, letter)) unsent_[static_cast<std::size_t>(to)].push_back(letter);
}

bool NodePost::sent(int to) {
  auto& letters = unsent_[static_cast<std::size_t>(to)];
  while (!letters.empty() && put(to, letters.front())) letters.pop_front();
  return letters.empty();
}

bool NodePost::all_sent() {
  bool all = true;
  for (int to = 0; to < static_cast<int>(parts_.size()); ++to) all = sent(to) && all;
  return all;
}

void NodePost::expect(Slip& slip) {
  const auto found = std::find_if(letters_.begin(), letters_.end(),
                                  [&](const Letter& letter) { return letter.address == slip.address; });
  if (found == letters_.end()) {
    slips_.push_back(&slip);
    return;
  }
  slip.letter = *found;
  slip.arrived = true;
  letters_.erase(found);
}

void NodePost::collect() {
  const std::uint32_t rings = box_of(me_).rings.load();
  if (rings == rings_seen_) return;
  rings_seen_ = rings;
  for (int sender = 0; sender < static_cast<int>(parts_.size()); ++sender) {
    Lane& way = lane(sender, me_);
    std::uint64_t read = way.read.load(std::memory_order_relaxed);
    for (const std::uint64_t written = way.written.load(std::memory_order_acquire); read < written; ++read)
      deliver(way.letters[read % Lane::capacity]);
    way.read.store(read, std::memory_order_release);
  }
}

void NodePost::deliver(const Letter& letter) {
  const auto found =
      std::find_if(slips_.begin(), slips_.end(), [&](const Slip* slip) { return slip->address == letter.address; });
  if (found == slips_.end()) {
    letters_.push_back(letter);
    return;
  }
  (*found)->letter = letter;
  (*found)->arrived = true;
  slips_.erase(found);
}

void NodePost::sleep(std::atomic<std::uint32_t>& rings, std::uint32_t seen, std::chrono::nanoseconds timeout) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(timeout);
  const timespec wait{seconds.count(), (timeout - seconds).count()};
  syscall(SYS_futex, &rings, FUTEX_WAIT, seen, &wait, nullptr, 0);
}

}  // namespace tessera
