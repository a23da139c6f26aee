// Plans for the tests of schedules: stages by their numbers of members, ranks in order.
#pragma once

#include <ostream>
#include <sstream>
#include <string>
#include <vector>

#include "tessera/schedule/schedule.h"

namespace tessera {

using Lists = std::vector<std::vector<Action>>;

inline Plan plan_of(ScheduleKind kind, const std::vector<int>& members, int parts, int times = 1) {
  Plan plan;
  plan.batch_size = parts;
  plan.parts = parts;
  plan.schedule = kind;
  plan.times = times;
  int rank = 0;
  for (const int count : members) {
    Stage stage{.grid = {1, count}};
    for (int m = 0; m < count; ++m) stage.ranks.push_back(rank++);
    plan.stages.push_back(stage);
  }
  return plan;
}

/// Stages of one rank each.
inline Plan pipeline(ScheduleKind kind, int stages, int parts, int times = 1) {
  return plan_of(kind, std::vector<int>(static_cast<std::size_t>(stages), 1), parts, times);
}

/// "F0 B0 S".
inline std::string words(const std::vector<Action>& list) {
  std::ostringstream out;
  for (std::size_t i = 0; i < list.size(); ++i) out << (i ? " " : "") << list[i];
  return out.str();
}

/// For the messages of failing tests.
inline std::string name_of(const Plan& plan) {
  std::ostringstream out;
  out << to_string(plan.schedule) << ", stages of";
  for (const auto& stage : plan.stages) out << ' ' << stage.members();
  out << ", parts " << plan.parts << ", times " << plan.times;
  return out.str();
}

inline std::vector<ScheduleKind> all_kinds() {
  return {ScheduleKind::gpipe,     ScheduleKind::one_f_one_b, ScheduleKind::zero_bubble,
          ScheduleKind::gems_mast, ScheduleKind::gems_master, ScheduleKind::chimera};
}

/// Every kind with 1 to 8 stages and 1 to 16 micros, stages of one rank and of several.
inline std::vector<Plan> many_plans() {
  std::vector<Plan> plans;
  for (const auto kind : all_kinds()) {
    const std::vector<int> all_times = kind == ScheduleKind::gems_master ? std::vector{1, 2, 3} : std::vector{1};
    for (const int times : all_times)
      for (int parts = 1; parts <= 16; ++parts) {
        for (int stages = 1; stages <= 8; ++stages) plans.push_back(pipeline(kind, stages, parts, times));
        for (const auto& members : std::vector<std::vector<int>>{{4}, {4, 1}, {4, 2, 1}, {2, 2}, {4, 1, 1, 1}, {1, 3}})
          plans.push_back(plan_of(kind, members, parts, times));
      }
  }
  return plans;
}

}  // namespace tessera
