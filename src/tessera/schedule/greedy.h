// Schedules of two directions. A rank then runs two stages whose actions compete for it, so there is no formula for a
// rank's list: the scheduler plays the step with equal stages and starts what a rule prefers as soon as it can run.
//
// A stage's members start an action together. All actions so stand in one order, that of their starts, of which every
// rank has its part: whatever the real costs are, the first unfinished action of that order can always run.
#pragma once

#include <vector>

#include "tessera/schedule/schedule.h"

namespace tessera {

struct GreedyRule {
  /// Which of several actions that could start gets the rank.
  enum class Prefer {
    backward,           ///< a backward, the deepest stage's first
    backward_of_down,   ///< a backward, direction down's first
    deep_forward,       ///< a forward, the deepest stage's first
    shallow_forward,    ///< a forward, the first stage's first
    old_forward,        ///< a forward, the oldest micro's first
    forward_under_way,  ///< a forward that is not a first stage's, then a backward, then a new micro
  };
  Prefer prefer = Prefer::backward;
  /// The most micros of a direction that a stage holds between forward and backward, by stage. It must be at least 1
  /// and must not matter to another direction: then a direction's oldest micro can always move.
  std::vector<int> live_per_stage;
  /// Micros of a batch. A rank holds no more micros than that, of both directions together, and takes batches in turn:
  /// down, up, down, ... It is the turn that keeps two directions from waiting for each other's memory. 0: no batches.
  int batch = 0;
};

/// Lists by rank of a replica, without the step.
std::vector<std::vector<Action>> greedy_schedule(const Plan& plan, const GreedyRule& rule);

}  // namespace tessera
