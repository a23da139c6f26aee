// Messages between the processes of one machine, through shared memory.
//
// A strip of a tile is not one piece of memory. Sent by MPI it is packed, copied by MPI, and unpacked. Here the sender
// packs it where the receiver unpacks it from, and a letter says where:
//
//     sender's tensor --pack--> block in the sender's part <--unpack-- receiver's tensor
//                               letter in the receiver's part
//
// And a rank that waits for a letter sleeps in the kernel, where MPI would have it ask again and again.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <vector>

#include "tessera/comm/node/node_memory.h"
#include "tessera/comm/wakefulness.h"

namespace tessera {

/// Who sent what: all but the block must agree with what the receiver expects.
struct Address {
  std::int64_t group = 0;  ///< a number that no other group on this machine has
  std::int32_t source = 0;
  std::int32_t tag = 0;
  friend bool operator==(const Address&, const Address&) = default;
};
struct Letter {
  Address address;
  std::int64_t block = -1;  ///< in the part of the sender; -1 for none
  std::int64_t bytes = 0;
};

/// A receive that waits for its letter. Stays where it is from expect() until it has arrived or is withdrawn.
struct Slip {
  Address address;
  bool arrived = false;
  Letter letter{};
};

/// This process's post. Letters of one address arrive in the order in which they were sent, at slips in the order in
/// which they were given. Used by one thread at a time.
class NodePost {
 public:
  /// parts[i] belongs to process i of this machine, parts[me] to this one.
  NodePost(std::vector<std::unique_ptr<SharedPart>> parts, int me);

  /// A block for `bytes`, until so many readers have called release().
  std::int64_t take_block(std::int64_t bytes, int readers);
  std::byte* data(int owner, std::int64_t block) const;
  void release(int owner, std::int64_t block) const;

  void send(int to, const Letter& letter);
  /// Whether all letters to a process are in its box; a full box takes them later, when this is called again.
  bool sent(int to);
  bool all_sent();

  void expect(Slip& slip);
  void withdraw(Slip& slip) { std::erase(slips_, &slip); }
  /// Gives letters that have come to their slips.
  void collect();

  /// Collects until done() or until the time is up; whether done().
  template <class Done>
  bool wait_for(std::chrono::nanoseconds timeout, const Done& done) {
    const auto collected = [&] {
      collect();
      return done();
    };
    if (awake_.wait(collected)) return true;
    Box& box = box_of(me_);
    box.asleep.store(1);
    const std::uint32_t seen = box.rings.load();
    if (!collected()) sleep(box.rings, seen, timeout);
    box.asleep.store(0);
    return collected();
  }

 private:
  /// Letters from one sender, the newest at written - 1.
  struct Lane {
    static constexpr std::size_t capacity = 256;
    alignas(64) std::atomic<std::uint64_t> written;
    alignas(64) std::atomic<std::uint64_t> read;
    std::array<Letter, capacity> letters;
  };
  /// The beginning of a part: what others write to. Zeros are an empty one.
  struct Box {
    alignas(64) std::atomic<std::uint32_t> rings;  ///< counts letters, so that one look tells whether there is any
    std::atomic<std::uint32_t> asleep;
  };
  struct BlockHead {
    alignas(64) std::atomic<std::int32_t> readers;
  };
  struct Block {
    std::int64_t offset, bytes;
  };

  Box& box_of(int process) const { return *reinterpret_cast<Box*>(part(process).at(0)); }
  Lane& lane(int from, int to) const {
    return reinterpret_cast<Lane*>(part(to).at(SharedPart::page))[static_cast<std::size_t>(from)];
  }
  BlockHead& head(int owner, std::int64_t block) const { return *reinterpret_cast<BlockHead*>(part(owner).at(block)); }
  const SharedPart& part(int process) const { return *parts_[static_cast<std::size_t>(process)]; }
  bool put(int to, const Letter& letter);
  void deliver(const Letter& letter);
  static void sleep(std::atomic<std::uint32_t>& rings, std::uint32_t seen, std::chrono::nanoseconds timeout);

  std::vector<std::unique_ptr<SharedPart>> parts_;
  int me_;
  Wakefulness awake_;
  std::vector<Block> blocks_;               ///< of this process
  std::int64_t blocks_end_;                 ///< where the next block would begin
  std::vector<std::deque<Letter>> unsent_;  ///< by receiver: those for which its box had no room
  std::uint32_t rings_seen_ = 0;
  std::vector<Slip*> slips_;     ///< in the order given
  std::vector<Letter> letters_;  ///< that nobody expects yet, in the order of arrival
};

}  // namespace tessera
