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
/// them. The counters besides the items are guarded by the mutex of the group.
struct Collective {
  Collective(const CollectiveCall& what, int ranks) : call(what), posts(static_cast<std::size_t>(ranks)) {}

  struct Post {
    bool here = false;
    Region in, out;
  };
  CollectiveCall call;
  std::vector<Post> posts;
  int arrived = 0, left = 0;
  std::int64_t items = 0;  ///< set by the last to arrive
  std::int64_t items_done = 0;
  std::atomic<std::int64_t> next_item{0};

  void arrive(Rank rank, Region in, Region out);
  bool all_here() const { return arrived == static_cast<int>(posts.size()); }
  bool done() const { return all_here() && items_done == items; }
  /// Does items until none is left; returns how many. To be called once all are here.
  std::int64_t help();

 private:
  std::int64_t count_items() const;
  void do_item(std::int64_t item) const;
};

}  // namespace tessera
