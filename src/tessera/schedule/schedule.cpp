#include "tessera/schedule/schedule.h"

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera {

std::ostream& operator<<(std::ostream& out, const Action& action) {
  if (action.kind == Action::Kind::step) return out << 'S';
  return out << (action.kind == Action::Kind::forward ? 'F' : 'B') << action.micro;
}

std::vector<Action> schedule_for(const Plan& plan, int rank) {
  const auto found = std::find_if(plan.stages.begin(), plan.stages.end(), [&](const Stage& stage) {
    return std::find(stage.ranks.begin(), stage.ranks.end(), rank) != stage.ranks.end();
  });
  ensure(found != plan.stages.end(), "rank ", rank, " has no stage in the plan");
  const int stage = static_cast<int>(found - plan.stages.begin());
  // One micro goes forward and back before the next one starts: the least memory, and with one stage nothing to wait
  // for.
  std::vector<Action> actions;
  for (int micro = 0; micro < plan.micros; ++micro) {
    actions.push_back({Action::Kind::forward, stage, micro});
    actions.push_back({Action::Kind::backward, stage, micro});
  }
  actions.push_back({Action::Kind::step, stage, 0});
  return actions;
}

}  // namespace tessera
