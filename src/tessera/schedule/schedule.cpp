#include "tessera/schedule/schedule.h"

#include <algorithm>
#include <set>

#include "tessera/base/error.h"
#include "tessera/base/index.h"
#include "tessera/schedule/bidirectional.h"
#include "tessera/schedule/pipelines.h"

namespace tessera {
namespace {

using Lists = std::vector<std::vector<Action>>;

// Every member of a stage has the stage's list.
Lists one_direction(const Plan& plan, std::vector<Action> (*list_of)(int stages, int micros, int stage)) {
  const int stages = static_cast<int>(plan.stages.size());
  Lists lists(static_cast<std::size_t>(plan.ranks_per_replica()));
  for (int s = 0; s < stages; ++s)
    for (const int rank : plan.stages[static_cast<std::size_t>(s)].ranks)
      lists[static_cast<std::size_t>(rank)] = list_of(stages, static_cast<int>(plan.micros(Direction::down)), s);
  return lists;
}

Lists without_step(const Plan& plan) {
  switch (plan.schedule) {
    case ScheduleKind::gpipe:
      return one_direction(plan, gpipe);
    case ScheduleKind::one_f_one_b:
      return one_direction(plan, one_f_one_b);
    case ScheduleKind::zero_bubble:
      return one_direction(plan, zero_bubble);
    case ScheduleKind::gems_mast:
    case ScheduleKind::gems_master:
      return gems(plan);
    case ScheduleKind::chimera:
      return chimera(plan);
  }
  throw Error("internal error: a schedule without a name");
}

// Where teams begin, and the number of ranks at the end. Direction up mirrors the cuts between stages.
//
//     down  0 0 0 0 1 2        four tiles before two stages
//     up    2 1 0 0 0 0
//     teams a b c c d e        ranks of a team are in the same stage both ways
std::vector<int> cuts_between_teams(const Plan& plan) {
  const int ranks = plan.ranks_per_replica();
  std::set<int> cuts{0, ranks};
  int end = 0;
  for (const Stage& stage : plan.stages) {
    end += static_cast<int>(stage.ranks.size());
    cuts.insert(end);
    if (plan.bidirectional()) cuts.insert(ranks - end);
  }
  return {cuts.begin(), cuts.end()};
}

// The plan with one rank of each team: in its schedule, every rank does what its whole team does in that of the plan.
Plan of_first_ranks(const Plan& plan, const std::vector<int>& cuts) {
  Plan out = plan;
  int team = 0;
  for (Stage& stage : out.stages) {
    const int end = stage.ranks.back() + 1;
    stage.ranks.clear();
    for (; cuts[index(team)] < end; ++team) stage.ranks.push_back(team);
  }
  return out;
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const Action& action) {
  switch (action.kind) {
    case Action::Kind::forward:
      out << 'F';
      break;
    case Action::Kind::backward:
      out << 'B';
      break;
    case Action::Kind::input_gradient:
      out << 'I';
      break;
    case Action::Kind::weight_gradient:
      out << 'W';
      break;
    case Action::Kind::step:
      return out << 'S';
  }
  return out << action.micro << (action.direction == Direction::up ? "'" : "");
}

std::vector<Team> make_teams(const Plan& plan) {
  const auto cuts = cuts_between_teams(plan);
  Lists lists = without_step(of_first_ranks(plan, cuts));
  std::vector<Team> teams;
  for (std::size_t t = 0; t < lists.size(); ++t) {
    lists[t].push_back({Action::Kind::step});
    teams.push_back({{cuts[t], cuts[t + 1]}, std::move(lists[t])});
  }
  return teams;
}

std::vector<std::vector<Action>> make_schedule(const Plan& plan) {
  Lists lists;
  for (const Team& team : make_teams(plan))
    lists.insert(lists.end(), static_cast<std::size_t>(team.ranks.size()), team.actions);
  return lists;
}

std::vector<std::vector<Action>> make_forward_schedule(const Plan& plan, int micros) {
  Lists lists(static_cast<std::size_t>(plan.ranks_per_replica()));
  for (int s = 0; s < static_cast<int>(plan.stages.size()); ++s)
    for (const int rank : plan.stages[static_cast<std::size_t>(s)].ranks)
      for (int m = 0; m < micros; ++m)
        lists[static_cast<std::size_t>(rank)].push_back({Action::Kind::forward, s, m, Direction::down});
  return lists;
}

}  // namespace tessera
