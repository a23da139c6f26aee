#include "tessera/planner/forecast.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/models/registry.h"
#include "tessera/schedule/footprint.h"

namespace tessera {
namespace {

Plan pipeline(ScheduleKind kind, int stages, int parts, int members = 1) {
  Plan plan;
  plan.batch_size = plan.parts = parts;
  plan.schedule = kind;
  int rank = 0;
  for (int s = 0; s < stages; ++s) {
    Stage stage{.grid = {1, members}};
    for (int m = 0; m < members; ++m) stage.ranks.push_back(rank++);
    plan.stages.push_back(stage);
  }
  return plan;
}

// Forward takes 1 s and backward 2.
std::vector<StageLoad> even(std::size_t stages) { return {stages, StageLoad{.seconds = {1, 1, 1}}}; }

constexpr Links instant{.message_bytes = 1e30, .sum_bytes = 1e30};
constexpr Site devices{.links = instant, .update_bytes = 1e30};

TEST(Forecast, OneRankDoesOneThingAfterTheOther) {
  EXPECT_DOUBLE_EQ(forecast(pipeline(ScheduleKind::one_f_one_b, 1, 4), even(1), devices).seconds, 12);
}

TEST(Forecast, APipelineFillsAndDrains) {
  //     F0 F1 .  .  B0 B0 B1 B1        two micros through two stages: (2 + 1) · 3 s
  //     .  F0 B0 B0 F1 B1 B1 .
  EXPECT_DOUBLE_EQ(forecast(pipeline(ScheduleKind::gpipe, 2, 2), even(2), devices).seconds, 9);
  EXPECT_DOUBLE_EQ(forecast(pipeline(ScheduleKind::one_f_one_b, 2, 2), even(2), devices).seconds, 9);
  // Weight gradients fill what waits.
  EXPECT_LT(forecast(pipeline(ScheduleKind::zero_bubble, 2, 4), even(2), devices).seconds,
            forecast(pipeline(ScheduleKind::one_f_one_b, 2, 4), even(2), devices).seconds);
}

TEST(Forecast, WhatWaitsIsWhatIsLeft) {
  const Forecast f = forecast(pipeline(ScheduleKind::gpipe, 2, 2), even(2), devices);
  EXPECT_DOUBLE_EQ(f.computing, 6);
  EXPECT_DOUBLE_EQ(f.waiting(), 3);
}

TEST(Forecast, RanksThatShareACoreTakeAsLongAsTheirWork) {
  Site shared = devices;
  shared.cores = 1;
  // 2 stages · 2 micros · 3 s: a rank that waits leaves the core to the other.
  EXPECT_DOUBLE_EQ(forecast(pipeline(ScheduleKind::gpipe, 2, 2), even(2), shared).seconds, 12);
  shared.cores = 2;
  EXPECT_DOUBLE_EQ(forecast(pipeline(ScheduleKind::gpipe, 2, 2), even(2), shared).seconds, 9);
  // Four tiles on two cores.
  EXPECT_DOUBLE_EQ(forecast(pipeline(ScheduleKind::gpipe, 1, 1, 4), even(1), shared).seconds, 6);
}

TEST(Forecast, CopiesOfAReplicaShareTheCoresToo) {
  Plan plan = pipeline(ScheduleKind::one_f_one_b, 1, 1);
  plan.replicas = 2;
  Site shared = devices;
  shared.cores = 1;
  EXPECT_DOUBLE_EQ(forecast(plan, even(1), shared).seconds, 6);
}

TEST(Forecast, MessagesTakeTime) {
  Site slow = devices;
  slow.links.message = 0.25;
  slow.links.message_bytes = 8;
  auto loads = even(2);
  loads[1].arriving_bytes = 2;  // 0.25 + 0.25 s, there and back
  EXPECT_DOUBLE_EQ(forecast(pipeline(ScheduleKind::gpipe, 2, 1), loads, slow).seconds, 7);
  auto margins = even(1);
  margins[0].exchanges = 2;
  margins[0].exchanged_bytes = 4;  // 0.5 + 0.5 s, in forward and in backward
  const Forecast f = forecast(pipeline(ScheduleKind::gpipe, 1, 1, 2), margins, slow);
  EXPECT_DOUBLE_EQ(f.seconds, 5);
  EXPECT_DOUBLE_EQ(f.talking, 2);
}

TEST(Forecast, GradientsOfCopiesAreSummed) {
  Site slow = devices;
  slow.links.sum_bytes = 10;
  auto loads = even(1);
  loads[0].parameter_bytes = 20;
  EXPECT_DOUBLE_EQ(forecast(pipeline(ScheduleKind::gpipe, 1, 1), loads, slow).summing, 0);
  EXPECT_DOUBLE_EQ(forecast(pipeline(ScheduleKind::gpipe, 1, 1, 2), loads, slow).summing, 2);
}

TEST(Forecast, EveryScheduleComesToItsEnd) {
  for (const auto kind : {ScheduleKind::gpipe, ScheduleKind::one_f_one_b, ScheduleKind::zero_bubble,
                          ScheduleKind::gems_mast, ScheduleKind::gems_master, ScheduleKind::chimera})
    for (const int stages : {2, 3, 4})
      for (const int parts : {2, 4, 8}) {
        const Plan plan = pipeline(kind, stages, parts);
        const Forecast f = forecast(plan, even(static_cast<std::size_t>(stages)), devices);
        EXPECT_GE(f.seconds, f.computing) << to_string(kind) << " " << stages << " " << parts;
        EXPECT_NEAR(f.computing, 3.0 * static_cast<double>(plan.micros()), 1e-9);
      }
}

TEST(Loads, TilesExchangeMarginsAndAgreeOnNorms) {
  const Graph graph = builtin_models().build({.name = "resnet_v1", .image = {3, 32, 32}, .classes = 3, .depth = 8});
  const Plan tiles = make_plan(graph, {.batch_size = 2, .grid = "2x2"});
  const auto loads = loads_of(graph, tiles, make_layout(graph, tiles), Recompute::norm, 4);
  EXPECT_GT(loads[0].exchanges, 3);
  EXPECT_GT(loads[0].exchanged_bytes, 0);
  EXPECT_GT(loads[0].agreements, 3);
  const Plan one = make_plan(graph, {.batch_size = 2});
  const auto alone = loads_of(graph, one, make_layout(graph, one), Recompute::norm, 4);
  EXPECT_EQ(alone[0].exchanges, 0);
  EXPECT_EQ(alone[0].agreements, 0);
}

TEST(Forecast, SaysWhatEveryTeamDoes) {
  Site slow = devices;
  slow.links.agreement = 0.5;
  slow.links.message = 0.25;
  auto loads = even(2);
  loads[0].agreements = 1;
  loads[0].exchanges = 1;
  const Forecast f = forecast(pipeline(ScheduleKind::gpipe, 2, 2), loads, slow);
  ASSERT_EQ(f.teams.size(), 2u);
  EXPECT_EQ(f.teams[1].ranks, (Interval{1, 2}));
  EXPECT_DOUBLE_EQ(f.teams[0].computing, 6);
  EXPECT_DOUBLE_EQ(f.teams[0][Part::norms], 2);  // two micros, there and back
  EXPECT_DOUBLE_EQ(f.teams[0][Part::margins], 1);
  EXPECT_DOUBLE_EQ(f.teams[1][Part::norms], 0);
  for (const TeamForecast& t : f.teams) {
    double sum = t.computing;
    for (const double part : t.parts) sum += part;
    EXPECT_DOUBLE_EQ(sum, f.seconds);
  }
}

TEST(Forecast, PutsDownWhenActionsAreDone) {
  const Plan plan = pipeline(ScheduleKind::gpipe, 2, 2);
  EXPECT_TRUE(forecast(plan, even(2), devices).teams[0].actions.empty());
  const Forecast f = forecast(plan, even(2), devices, /*recorded=*/true);
  std::vector<std::pair<double, double>> times;
  for (const ActionSpan& span : f.teams[1].actions) times.emplace_back(span.begin, span.end);
  // .  F0 F1 B1 B1 B0 B0
  EXPECT_THAT(times, testing::ElementsAre(std::pair{1., 2.}, std::pair{2., 3.}, std::pair{3., 5.}, std::pair{5., 7.}));
}

TEST(Forecast, OnSharedCoresWorkTakesLonger) {
  Site shared = devices;
  shared.cores = 1;
  const Forecast f = forecast(pipeline(ScheduleKind::gpipe, 1, 1, 4), even(1), shared);
  EXPECT_DOUBLE_EQ(f.teams[0].computing, 12);
  EXPECT_DOUBLE_EQ(f.waiting(), 0);
}

TEST(Forecast, ThousandsOfTilesTakeNoLongerThanAFew) {
  const Forecast f = forecast(pipeline(ScheduleKind::chimera, 2, 4, 32768), even(2), devices);
  EXPECT_DOUBLE_EQ(f.seconds, forecast(pipeline(ScheduleKind::chimera, 2, 4), even(2), devices).seconds);
}

// Uneven tiles, strides, margins wider than at most nodes: the sample has about what the busiest of all has.
TEST(Loads, ASampleStandsForAll) {
  const Graph graph = builtin_models().build({.name = "resnet18", .image = {3, 1000, 1100}, .classes = 3});
  for (const PlanOptions& options :
       {PlanOptions{.batch_size = 2, .grid = "12x9"},
        PlanOptions{.batch_size = 8, .parts = 2, .split_size = 3, .grid = "10x13", .spatial_size = 2, .local_dp = 4}}) {
    const Plan plan = make_plan(graph, options);
    const Layout layout = make_layout(graph, plan);
    const Sample sample = make_sample(graph, plan);
    EXPECT_LT(sample.plan.ranks(), plan.ranks());
    const auto all = loads_of(graph, plan, layout, Recompute::norm, 4);
    const auto some = loads_of(graph, sample.plan, sample.layout, Recompute::norm, 4);
    for (std::size_t s = 0; s < all.size(); ++s) {
      EXPECT_EQ(some[s].exchanges, all[s].exchanges);
      EXPECT_EQ(some[s].agreements, all[s].agreements);
      EXPECT_EQ(some[s].parameter_bytes, all[s].parameter_bytes);
      EXPECT_NEAR(some[s].exchanged_bytes, all[s].exchanged_bytes, 0.1 * all[s].exchanged_bytes) << s;
      EXPECT_NEAR(some[s].arriving_bytes, all[s].arriving_bytes, 0.1 * all[s].arriving_bytes) << s;
    }
    const auto peak = [](const std::vector<Footprint>& needs) {
      double most = 0;
      for (const Footprint& f : needs) most = std::max(most, f.peak());
      return most;
    };
    const double whole = peak(predicted_memory(plan, graph, {}));
    EXPECT_NEAR(peak(predicted_memory(sample.plan, sample.layout, graph, {})), whole, 0.01 * whole);
  }
}

}  // namespace
}  // namespace tessera
