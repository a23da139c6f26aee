// What holds for every schedule, whatever the plan and the costs.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <tuple>

#include "plans.h"
#include "tessera/base/error.h"
#include "tessera/schedule/simulator.h"

namespace tessera {
namespace {

using Kind = Action::Kind;

std::vector<StageCost> random_costs(std::size_t stages, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> cost(0.1, 3.0);
  std::vector<StageCost> costs(stages);
  for (auto& c : costs) c = {cost(random), cost(random), cost(random), cost(random)};
  return costs;
}

TEST(Schedule, EveryActionIsThereOnce) {
  for (const auto& plan : many_plans()) {
    SCOPED_TRACE(name_of(plan));
    const Lists lists = make_schedule(plan);
    ASSERT_EQ(static_cast<int>(lists.size()), plan.ranks_per_replica());
    for (int rank = 0; rank < plan.ranks_per_replica(); ++rank) {
      const auto& list = lists[static_cast<std::size_t>(rank)];
      ASSERT_EQ(list.back().kind, Kind::step);
      std::multiset<std::tuple<int, int, int, int>> found, expected;
      for (const auto& a : list) {
        if (a.kind == Kind::step) continue;
        const auto add = [&](Kind kind) {
          found.insert({static_cast<int>(kind), a.stage, a.micro, static_cast<int>(a.direction)});
        };
        if (a.kind != Kind::backward) add(a.kind);
        if (a.kind == Kind::backward) add(Kind::input_gradient), add(Kind::weight_gradient);
      }
      for (const auto& place : plan.places_of(rank))
        for (int m = 0; m < plan.micros(place.direction); ++m)
          for (const auto kind : {Kind::forward, Kind::input_gradient, Kind::weight_gradient})
            expected.insert({static_cast<int>(kind), place.stage, m, static_cast<int>(place.direction)});
      ASSERT_EQ(found, expected) << "rank " << rank;
      ASSERT_EQ(std::count_if(list.begin(), list.end(), [](const Action& a) { return a.kind == Kind::step; }), 1);
    }
  }
}

TEST(Schedule, RanksThatAreTogetherEverywhereAreATeam) {
  const auto teams = make_teams(plan_of(ScheduleKind::one_f_one_b, {4096, 2}, 4));
  ASSERT_EQ(teams.size(), 2u);
  EXPECT_EQ(teams[0].ranks, (Interval{0, 4096}));
  EXPECT_EQ(words(teams[1].actions), "F0 B0 F1 B1 F2 B2 F3 B3 S");
  // Down 0 0 0 0 1 2, up 2 1 0 0 0 0.
  const auto both = make_teams(plan_of(ScheduleKind::chimera, {4, 1, 1}, 4));
  std::vector<Interval> ranks;
  for (const Team& team : both) ranks.push_back(team.ranks);
  EXPECT_EQ(ranks, (std::vector<Interval>{{0, 1}, {1, 2}, {2, 4}, {4, 5}, {5, 6}}));
}

TEST(Schedule, ForwardsOfADirectionAreInOrderOfTheirMicros) {
  for (const auto& plan : many_plans())
    for (const auto& list : make_schedule(plan)) {
      std::map<Direction, int> next;
      for (const auto& a : list)
        if (a.kind == Kind::forward) {
          ASSERT_EQ(a.micro, next[a.direction]++) << name_of(plan);
        }
    }
}

TEST(Schedule, OnlyZeroBubbleSplitsTheBackward) {
  for (const auto& plan : many_plans())
    for (const auto& list : make_schedule(plan))
      for (const auto& a : list)
        if (a.kind == Kind::input_gradient || a.kind == Kind::weight_gradient) {
          ASSERT_EQ(plan.schedule, ScheduleKind::zero_bubble);
          ASSERT_GT(a.stage, 0) << "nobody waits for the first stage's input gradient";
        }
}

TEST(Schedule, MembersOfAStageRunItsActionsInOneOrder) {
  for (const auto& plan : many_plans()) {
    const Lists lists = make_schedule(plan);
    for (int d = 0; d < plan.directions(); ++d)
      for (int s = 0; s < static_cast<int>(plan.stages.size()); ++s) {
        std::vector<Action> first;
        for (int m = 0; m < plan.stages[static_cast<std::size_t>(s)].members(); ++m) {
          const auto direction = static_cast<Direction>(d);
          std::vector<Action> own;
          for (const auto& a : lists[static_cast<std::size_t>(plan.rank_of(direction, s, m))])
            if (a.kind != Kind::step && a.stage == s && a.direction == direction) own.push_back(a);
          if (m == 0) first = own;
          ASSERT_EQ(own, first) << name_of(plan);
        }
      }
  }
}

// The test's own reading of the spans, apart from the simulator's.
void expect_dependencies_met(const Plan& plan, const Simulation& simulation) {
  using Key = std::tuple<char, Direction, int, int>;
  std::map<Key, std::pair<double, double>> when;  // F, I (B too) and W (B too)
  for (const auto& rank : simulation.ranks) {
    double before = 0;
    for (const auto& span : rank.spans) {
      ASSERT_GE(span.begin, before) << "two actions at once";
      before = span.end;
      const auto& a = span.action;
      const auto note = [&](char what) {
        const auto [place, is_new] = when.insert({{what, a.direction, a.stage, a.micro}, {span.begin, span.end}});
        ASSERT_EQ(place->second, std::pair(span.begin, span.end)) << "members apart";
      };
      if (a.kind == Kind::forward) note('F');
      if (a.kind == Kind::backward || a.kind == Kind::input_gradient) note('I');
      if (a.kind == Kind::weight_gradient) note('W');
    }
  }
  const int last = static_cast<int>(plan.stages.size()) - 1;
  const auto slack = 1e-9;
  for (const auto& [key, span] : when) {
    const auto [what, direction, stage, micro] = key;
    const double begin = span.first + slack;
    if (what == 'F' && stage > 0) {
      ASSERT_GE(begin, when.at({'F', direction, stage - 1, micro}).second);
    }
    if (what == 'I') {
      ASSERT_GE(begin, when.at({'F', direction, stage, micro}).second);
      if (stage < last) {
        ASSERT_GE(begin, when.at({'I', direction, stage + 1, micro}).second);
      }
    }
    if (what == 'W') {
      ASSERT_GE(begin, when.at({'I', direction, stage, micro}).second);
    }
  }
}

TEST(Schedule, NothingDeadlocksAndNothingComesTooEarlyWhateverTheCosts) {
  unsigned seed = 1;
  for (const auto& plan : many_plans()) {
    SCOPED_TRACE(name_of(plan));
    const Lists lists = make_schedule(plan);
    expect_dependencies_met(plan, simulate(plan, lists, random_costs(plan.stages.size(), seed++)));
    expect_dependencies_met(plan, simulate(plan, lists));
    if (HasFatalFailure()) return;
  }
}

TEST(Schedule, OneDirectionStandsBlockingSends) {
  for (const auto& plan : many_plans()) {
    if (plan.bidirectional()) continue;
    const int ahead = plan.schedule == ScheduleKind::gpipe ? 0 : 1;
    EXPECT_NO_THROW(check_blocking_sends(plan, make_schedule(plan), ahead)) << name_of(plan);
  }
}

TEST(Schedule, TwoDirectionsStandBlockingSendsIfReceivesArePostedFarEnoughAhead) {
  for (const auto& plan : many_plans()) {
    const bool spatial = plan.ranks_per_replica() > static_cast<int>(plan.stages.size());
    if (!plan.bidirectional() || spatial) continue;
    const int ahead = plan.schedule == ScheduleKind::chimera ? 2 * static_cast<int>(plan.stages.size()) + 2 : 3;
    EXPECT_NO_THROW(check_blocking_sends(plan, make_schedule(plan), ahead)) << name_of(plan);
  }
}

TEST(Schedule, OneForwardOneBackwardDeadlocksIfNeitherSideReceivesAhead) {
  const Plan plan = pipeline(ScheduleKind::one_f_one_b, 2, 3);
  EXPECT_THROW(check_blocking_sends(plan, make_schedule(plan), 0), Error);
}

}  // namespace
}  // namespace tessera
