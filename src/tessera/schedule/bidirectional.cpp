#include "tessera/schedule/bidirectional.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "tessera/schedule/greedy.h"
#include "tessera/schedule/simulator.h"

namespace tessera {
namespace {

using Lists = std::vector<std::vector<Action>>;

// As many as 1F1B holds.
std::vector<int> live_of_one_f_one_b(int stages) {
  std::vector<int> live;
  for (int s = 0; s < stages; ++s) live.push_back(stages - s);
  return live;
}

// No preference is best for all numbers of stages and micros, and a schedule costs microseconds: try them all and keep
// the shortest, of equal ones the one that holds the fewest micros.
Lists best_schedule(const Plan& plan, const std::vector<std::vector<int>>& live_per_stage, int batch) {
  using Prefer = GreedyRule::Prefer;
  std::optional<std::pair<double, int>> best;
  Lists chosen;
  for (const auto& live : live_per_stage)
    for (const auto prefer : {Prefer::backward, Prefer::backward_of_down, Prefer::deep_forward, Prefer::shallow_forward,
                              Prefer::old_forward, Prefer::forward_under_way}) {
      Lists lists = greedy_schedule(plan, {prefer, live, batch});
      const Simulation simulation = simulate(plan, lists);
      const std::pair value{simulation.makespan, simulation.live_micros()};
      if (best && *best <= value) continue;
      best = value;
      chosen = std::move(lists);
    }
  return chosen;
}

}  // namespace

// Three stages, two batches of two micros; direction up has small letters:
//
//     rank 0  F0F1..........B0--f0b0--f1B1--b1--........
//     rank 1  ..F0F1....B0--f0..B1--f1b0--......b1--....
//     rank 2  ....F0B0--F1f0B1--f1........b0--......b1--
Lists gems(const Plan& plan) {
  return best_schedule(plan, {live_of_one_f_one_b(static_cast<int>(plan.stages.size()))}, static_cast<int>(plan.parts));
}

// Four stages, four micros, as in the paper:
//
//     rank 0  F0F1..f0b0--f1b1--..B0--....B1--
//     rank 1  ..F0f0F1f1..b0--B0--b1--B1--....
//     rank 2  ..f0F0f1F1..B0--b0--B1--b1--....
//     rank 3  f0f1..F0B0--F1B1--..b0--....b1--
Lists chimera(const Plan& plan) {
  const int stages = static_cast<int>(plan.stages.size());
  // As published, no direction holds more than half of the stages; with many micros it can be worth it.
  const auto relaxed = live_of_one_f_one_b(stages);
  auto published = relaxed;
  for (int& live : published) live = std::min(live, (stages + 1) / 2);
  return best_schedule(plan, {published, relaxed}, 0);
}

}  // namespace tessera
