// Walks the lists of a schedule with costs, as the ranks would: an action starts when all members of its stage have
// come to it and what it needs has arrived.
//
//     F(s, m)          needs  F(s-1, m)
//     B or I(s, m)     needs  F(s, m) and B or I(s+1, m)
//     W(s, m)          needs  I(s, m)
//     S                needs  all ranks
//
// Skip connections over several stages are implied.
#pragma once

#include <span>
#include <vector>

#include "tessera/graph/graph.h"
#include "tessera/schedule/schedule.h"

namespace tessera {

/// Of one micro on one member of a stage. Any unit of time; a backward takes both gradients' time.
struct StageCost {
  double forward = 1;
  double input_gradient = 1;
  double weight_gradient = 1;
  double live = 1;  ///< what is kept between forward and backward, e.g. bytes
};

/// By the costs of the graph's nodes, for one micro. Times are ratios (see Work), `live` is in elements. Messages
/// take no time.
std::vector<StageCost> stage_costs(const Plan& plan, const Graph& graph);

struct Simulation {
  struct Span {
    Action action;
    double begin = 0, end = 0;
  };
  struct Rank {
    std::vector<Span> spans;
    double busy = 0;
    int live_micros = 0;   ///< the most at once, from forward to the end of backward or weight_gradient
    double live_cost = 0;  ///< the most at once of StageCost::live
  };
  std::vector<Rank> ranks;  ///< of a replica
  double makespan = 0;

  /// The bubble: the share of the step in which the rank waits.
  double idle(const Rank& rank) const { return makespan > 0 ? 1 - rank.busy / makespan : 0; }
  /// Over all ranks.
  double idle() const;
  /// The most on any rank.
  int live_micros() const;
};

/// Throws Error that names the rank and the action if an action would wait for ever, is there twice, is missing or does
/// not belong to the rank. costs: one per stage; none: all stages are equal.
Simulation simulate(const Plan& plan, const std::vector<std::vector<Action>>& schedule,
                    std::span<const StageCost> costs = {});

/// Walks the lists with sends that block: a rank goes on from an action only when the receives of all that it made are
/// posted. A rank posts the receives of its next `receives_ahead` actions before it sends; with 0 it posts an action's
/// receives when it comes to the action. Throws Error if that deadlocks. GPipe gets by with 0, 1F1B and zero-bubble
/// with 1; two directions want sends that do not block.
void check_blocking_sends(const Plan& plan, const std::vector<std::vector<Action>>& schedule, int receives_ahead);

}  // namespace tessera
