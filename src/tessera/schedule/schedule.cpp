#include "tessera/schedule/schedule.h"

#include "tessera/base/error.h"
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

std::vector<std::vector<Action>> make_schedule(const Plan& plan) {
  auto lists = without_step(plan);
  for (auto& list : lists) list.push_back({Action::Kind::step});
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
