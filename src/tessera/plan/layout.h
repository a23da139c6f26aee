// Where every value lies: which box of it each member of a stage owns, makes and holds, and what must travel for that.
// It follows from the region rules alone, so the planner, the simulator and every rank come to the same answer.
//
//     frame   what is allocated: held, and the zeros of a convolution's padding where the image ends
//     held    what the consumers look at: made, and the margin that other members send
//     made    what the member computes itself: owned, and with fused margins what its later nodes need around it
//     owned   the member's tile: the boxes of a partition
//
//     +--------------------------+ frame
//     |  0 0 0 0 0 0 0 0 0 0 0   |        a tile at the upper left corner of the image:
//     |  0 +-----------------+---+ held   zeros above and to the left, margins of its
//     |  0 |     owned       | m |        neighbours to the right and below
//     |  0 |     = made      | m |
//     |  0 +-----------------+ m |
//     |  0 | m m m m m m m m m m |
//     +----+---------------------+
#pragma once

#include <optional>
#include <vector>

#include "tessera/plan/plan.h"
#include "tessera/program/program.h"

namespace tessera {

/// One value on the members of one stage. Batch intervals count from the micro's first sample. Empty lists: the stage
/// has nothing to do with the value.
struct ValueLayout {
  std::vector<Box> owned, made, held, frame;  ///< by member
  bool exchanged = false;                     ///< some member holds what others of the stage own
  bool used() const { return !held.empty(); }
};

/// A value that moves: among the members of a stage (from == to: its margins), or from the stage that makes it to one
/// that needs it. Its place in Layout::transfers is its number on all ranks.
struct Transfer {
  int value = 0;
  int from = 0, to = 0;
  friend bool operator==(const Transfer&, const Transfer&) = default;
};

struct Layout {
  std::vector<std::vector<ValueLayout>> stages;  ///< [stage][value]
  std::vector<Transfer> transfers;

  const ValueLayout& at(int stage, int value) const {
    return stages[static_cast<std::size_t>(stage)][static_cast<std::size_t>(value)];
  }
  /// Boxes by the number of a place, empty where a place has no part: what an Exchange takes.
  Partition have(const Plan& plan, const Transfer& transfer, Direction direction) const;
  std::vector<Box> need(const Plan& plan, const Transfer& transfer, Direction direction) const;
};

Layout make_layout(const Graph& graph, const Plan& plan);

/// Neighbouring members of every stage that stand for all of them: at borders and in the middle. What members compute,
/// hold and send is the same here and there, but for a row or a column that tiles of uneven cuts have more, so a plan
/// of thousands of tiles is known from a few dozen.
struct Sample {
  Plan plan;      ///< with grids of those members alone
  Layout layout;  ///< their boxes in the whole plan
};
/// Without large grids, with turns, and with two directions through up to 128 ranks, all members are in it.
Sample make_sample(const Graph& graph, const Plan& plan);

/// What a stage's members run.
Program stage_program(const Graph& graph, const Plan& plan, const Layout& layout, int stage, Recompute recompute);

/// The first node in [first, end) at which some tile of the grid would own nothing. Behind the point where a network
/// leaves the plane (global pooling, flatten) one tile owns all, and that is no fault.
std::optional<int> find_empty_tile(const Graph& graph, const Grid& grid, int first, int end);

/// What the transfers into and within a stage cost for one micro, there and back.
struct ExchangeCost {
  std::int64_t exchanges = 0;
  std::int64_t messages = 0;
  std::int64_t elements = 0;
};
ExchangeCost exchange_cost(const Layout& layout, const Graph& graph, int stage);

}  // namespace tessera
