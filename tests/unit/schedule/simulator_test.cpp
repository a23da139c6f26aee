#include "tessera/schedule/simulator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plans.h"
#include "tessera/base/error.h"
#include "tessera/models/registry.h"
#include "tessera/program/program.h"

namespace tessera {
namespace {

using testing::HasSubstr;
using Kind = Action::Kind;

std::string complaint(const Plan& plan, const Lists& lists) {
  try {
    simulate(plan, lists);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Simulator, CostsSayWhenActionsRun) {
  const Plan plan = pipeline(ScheduleKind::one_f_one_b, 2, 1);
  const std::vector<StageCost> costs{{.forward = 1, .input_gradient = 2, .weight_gradient = 3},
                                     {.forward = 4, .input_gradient = 5, .weight_gradient = 6}};
  const auto simulation = simulate(plan, make_schedule(plan), costs);
  const auto& first = simulation.ranks[0].spans;
  const auto& second = simulation.ranks[1].spans;
  EXPECT_DOUBLE_EQ(first[0].end, 1);
  EXPECT_DOUBLE_EQ(second[0].begin, 1);
  EXPECT_DOUBLE_EQ(second[0].end, 5);
  EXPECT_DOUBLE_EQ(second[1].end, 16);
  EXPECT_DOUBLE_EQ(first[1].begin, 16);
  EXPECT_DOUBLE_EQ(simulation.makespan, 21);
  EXPECT_DOUBLE_EQ(simulation.ranks[0].busy, 6);
  EXPECT_DOUBLE_EQ(simulation.idle(simulation.ranks[0]), 15.0 / 21);
  EXPECT_DOUBLE_EQ(simulation.idle(), (15.0 + 6.0) / 42);
}

TEST(Simulator, AWeightGradientOnItsOwnDoesNotHoldUpTheStageBefore) {
  const Plan plan = pipeline(ScheduleKind::zero_bubble, 2, 1);
  const auto simulation = simulate(plan, make_schedule(plan));
  EXPECT_DOUBLE_EQ(simulation.ranks[0].spans[1].begin, 3);
  EXPECT_DOUBLE_EQ(simulation.ranks[1].spans[2].begin, 3);
}

TEST(Simulator, MicrosLiveFromForwardToTheEndOfTheLastGradient) {
  const Plan plan = pipeline(ScheduleKind::zero_bubble, 2, 3);
  const std::vector<StageCost> costs{{.live = 10}, {.live = 7}};
  const auto simulation = simulate(plan, make_schedule(plan), costs);
  EXPECT_EQ(simulation.ranks[0].live_micros, 2);
  EXPECT_EQ(simulation.ranks[1].live_micros, 2);
  EXPECT_DOUBLE_EQ(simulation.ranks[0].live_cost, 20);
  EXPECT_DOUBLE_EQ(simulation.ranks[1].live_cost, 14);
}

TEST(Simulator, EachDirectionsStageWeighsItsOwnOnARank) {
  const Plan plan = pipeline(ScheduleKind::chimera, 2, 2);
  const std::vector<StageCost> costs{{.live = 10}, {.live = 7}};
  const auto simulation = simulate(plan, make_schedule(plan), costs);
  EXPECT_DOUBLE_EQ(simulation.ranks[0].live_cost, 17);
  EXPECT_DOUBLE_EQ(simulation.ranks[1].live_cost, 17);
}

TEST(Simulator, ADeadlockNamesTheRankTheActionAndWhatItWaitsFor) {
  const Plan plan = pipeline(ScheduleKind::one_f_one_b, 2, 1);
  const Lists lists{{{Kind::backward, 0, 0}, {Kind::forward, 0, 0}}, {{Kind::forward, 1, 0}, {Kind::backward, 1, 0}}};
  EXPECT_EQ(complaint(plan, lists), "schedule: rank 0 waits for ever at B0 of stage 0: F0 of stage 0 has not run");
}

TEST(Simulator, MembersThatActInAnotherOrderDeadlock) {
  const Plan plan = plan_of(ScheduleKind::gpipe, {2}, 2);
  Lists lists = make_schedule(plan);
  std::swap(lists[1][1], lists[1][2]);  // F0 F1 B0 B1
  EXPECT_EQ(complaint(plan, lists), "schedule: rank 0 waits for ever at B0 of stage 0: rank 1 is at F1 of stage 0");
}

TEST(Simulator, WhatIsMissingTwiceOrOutOfPlaceIsFound) {
  const Plan plan = pipeline(ScheduleKind::one_f_one_b, 2, 2);
  const Lists good = make_schedule(plan);
  EXPECT_EQ(complaint(plan, good), "");

  Lists missing = good;  // without the last weight gradient
  missing[1][3].kind = Kind::input_gradient;
  EXPECT_THAT(complaint(plan, missing), HasSubstr("stage 1 never finishes micro 1 of direction down"));

  Lists twice = good;
  twice[1].insert(twice[1].begin(), twice[1].front());
  EXPECT_THAT(complaint(plan, twice), HasSubstr("rank 1 runs F0 of stage 1 twice"));

  Lists strange = good;
  strange[0][0].stage = 1;
  EXPECT_THAT(complaint(plan, strange), HasSubstr("rank 0 has no part in F0 of stage 1"));
  strange = good;
  strange[0][0].micro = 2;
  EXPECT_THAT(complaint(plan, strange), HasSubstr("rank 0 has no part in F2 of stage 0"));
  strange = good;
  strange[0][0].direction = Direction::up;
  EXPECT_THAT(complaint(plan, strange), HasSubstr("rank 0 has no part in F0' of stage 0"));

  Lists unfinished = good;
  unfinished[1].pop_back();  // its step
  EXPECT_THAT(complaint(plan, unfinished), HasSubstr("rank 0 waits for ever at S: rank 1 has nothing more to do"));
}

TEST(Simulator, ABlockedSendIsNamed) {
  const Plan plan = pipeline(ScheduleKind::one_f_one_b, 2, 3);
  try {
    check_blocking_sends(plan, make_schedule(plan), 0);
    FAIL() << "no deadlock";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("rank 0 waits for ever at B0 of stage 0"));
    EXPECT_THAT(error.what(), HasSubstr("nobody takes what F1 of stage 0 has made"));
  }
}

TEST(Simulator, StageCostsComeFromTheGraphAndAreSharedByTheMembers) {
  const Graph graph = builtin_models().build({.name = "resnet_v1", .image = {3, 16, 16}, .classes = 3, .depth = 8});
  const int nodes = static_cast<int>(graph.nodes().size());
  Plan whole = pipeline(ScheduleKind::one_f_one_b, 1, 1);
  whole.batch_size = 4;
  whole.stages[0].end_node = nodes;
  Plan tiled = plan_of(ScheduleKind::one_f_one_b, {4, 1}, 2);
  tiled.batch_size = 8;
  tiled.stages[0].end_node = tiled.stages[1].first_node = nodes / 2;
  tiled.stages[1].end_node = nodes;

  const auto one = stage_costs(whole, graph);
  const auto two = stage_costs(tiled, graph);
  ASSERT_EQ(two.size(), 2u);
  const auto expect_sum = [](double sum, double quarter, double rest) {
    EXPECT_NEAR(4 * quarter + rest, sum, 1e-6 * sum);
  };
  expect_sum(one[0].forward, two[0].forward, two[1].forward);
  expect_sum(one[0].input_gradient, two[0].input_gradient, two[1].input_gradient);
  expect_sum(one[0].weight_gradient, two[0].weight_gradient, two[1].weight_gradient);
  // What is kept is not a sum: what crosses the cut is kept on both sides, and the cut may go through a fused step.
  const auto kept = [&](int first, int end) {
    return 4 * kept_elements(graph, Program(graph, {first, end}, Recompute::norm));
  };
  EXPECT_EQ(one[0].live, kept(0, nodes));
  EXPECT_EQ(two[0].live, kept(0, nodes / 2) / 4);
  EXPECT_EQ(two[1].live, kept(nodes / 2, nodes));
  EXPECT_GT(4 * two[0].live + two[1].live, one[0].live);
  EXPECT_GT(two[1].forward, 0);
}

}  // namespace
}  // namespace tessera
