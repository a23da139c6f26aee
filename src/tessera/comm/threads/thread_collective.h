// The work of one collective among ranks that are threads, cut into items that any of them may do.
#pragma once

#include <atomic>
#include <cstdint>
#include <ostream>
#include <vector>

#include "tessera/comm/region.h"
#include "tessera/comm/types.h"

namespace tessera {

/// What the ranks must agree on.
struct CollectiveCall {
  enum class Kind { all_reduce, broadcast, all_gather, barrier };
  Kind kind = Kind::barrier;
  Reduce op = Reduce::sum;
  Rank root;
  std::int64_t bytes = 0;

  const char* name() const;
  friend bool operator==(const CollectiveCall&, const CollectiveCall&) = default;
};

/// Every rank posts its regions; when all have, the items can be done by whoever waits, so that a rank which is still
/// busy with other work delays nobody. Items write disjoint memory, and what they write does not depend on who does
/// them. Arriving and leaving is guarded by the mutex of the group; the rest is atomic.
struct Collective {
  Collective(const CollectiveCall& what, int ranks) : call(what), posts(static_cast<std::size_t>(ranks)) {}

  struct Post {
    bool here = false;
    Region in, out;
  };
  CollectiveCall call;
  std::vector<Post> posts;
  int arrived = 0, left = 0;

  /// True for the last to arrive.
  bool arrive(Rank rank, Region in, Region out);
  bool all_here() const { return all_here_.load(); }
  bool done() const { return all_here() && items_done_.load() == items_; }
  /// So little work that the last to arrive does it sooner than others wake up.
  bool little_work() const;
  /// Does items until none is left; true if that was the end of it. To be called once all are here.
  bool help();

 private:
  std::int64_t count_items() const;
  void do_item(std::int64_t item) const;
  void reduce_on_gpus() const;

  std::int64_t items_ = 0;  ///< set by the last to arrive
  std::atomic<bool> all_here_ = false;
  std::atomic<std::int64_t> next_item_{0}, items_done_{0};
};

}  // namespace tessera
