#include "tessera/plan/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/models/registry.h"
#include "tessera/plan/plan_flags.h"
#include "tessera/schedule/schedule.h"

namespace tessera {
namespace {

using testing::HasSubstr;

Graph graph() { return builtin_models().build({.name = "resnet_v1", .image = {3, 16, 16}, .classes = 3, .depth = 8}); }

std::string problems_of(const PlanOptions& options, std::optional<int> ranks = std::nullopt) {
  try {
    make_plan(graph(), options, ranks);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(Plan, SequentialTrainingIsOneStageOnOneRank) {
  const Plan plan = make_plan(graph(), {.batch_size = 12, .parts = 3});
  EXPECT_EQ(plan.ranks(), 1);
  EXPECT_EQ(plan.stages.size(), 1u);
  EXPECT_EQ(plan.stages[0].end_node, static_cast<int>(graph().nodes().size()));
  EXPECT_EQ(plan.micro_size(), 4);
}

TEST(Plan, ABatchThatTheMicrosDoNotDivideNamesTheFlags) {
  const std::string text = problems_of({.batch_size = 10, .parts = 4});
  EXPECT_THAT(text, HasSubstr("--batch-size 10"));
  EXPECT_THAT(text, HasSubstr("--parts 4"));
  EXPECT_THAT(text, HasSubstr("--batch-size 12"));
}

TEST(Plan, EveryProblemIsInOneMessage) {
  const std::string text = problems_of({.batch_size = 0, .parts = 0, .split_size = 0, .times = 0, .fused_layers = 0});
  for (const char* flag : {"--batch-size", "--parts", "--split-size", "--times", "--fused-layers"})
    EXPECT_THAT(text, HasSubstr(flag));
}

TEST(Plan, FlagsThatAskForNothingAreAccepted) {
  EXPECT_EQ(problems_of({.batch_size = 4, .split_size = 1, .num_spatial_parts = "1", .local_dp = 1}), "");
}

TEST(Plan, ContradictionsNameTheFlagToChange) {
  EXPECT_THAT(problems_of({.slice_method = "vertical"}), HasSubstr("--num-spatial-parts"));
  EXPECT_THAT(problems_of({.halo_d2 = true}), HasSubstr("--grid"));
  EXPECT_THAT(problems_of({.num_spatial_parts = "2", .fused_layers = 2}), HasSubstr("--halo-D2"));
  EXPECT_THAT(problems_of({.local_dp = 2}), HasSubstr("--local-DP"));
  EXPECT_THAT(problems_of({.split_size = 2, .local_dp = 2}), HasSubstr("--replicas"));
  EXPECT_THAT(problems_of({.split_size = 2, .balance = "3,1"}), HasSubstr("--balance"));
  EXPECT_THAT(problems_of({.split_size = 20}), HasSubstr("--split-size"));
  EXPECT_THAT(problems_of({.spatial_size = 1}), HasSubstr("--spatial-size"));
  EXPECT_THAT(problems_of({.split_size = 2, .num_spatial_parts = "2", .spatial_size = 3}), HasSubstr("--split-size 3"));
  EXPECT_THAT(problems_of({.num_spatial_parts = "2", .grid = "2x1"}), HasSubstr("--grid"));
  EXPECT_THAT(problems_of({.grid = "2*1"}), HasSubstr("3x5"));
  EXPECT_THAT(problems_of({.num_spatial_parts = "2,x"}), HasSubstr("--num-spatial-parts 2,x"));
  EXPECT_THAT(problems_of({.schedule = "1f1b", .times = 2}), HasSubstr("--times"));
  EXPECT_THAT(problems_of({.schedule = "2f2b"}), HasSubstr("zero-bubble"));
  EXPECT_THAT(problems_of({.batch_size = 6, .split_size = 2, .num_spatial_parts = "2", .local_dp = 4}),
              HasSubstr("--batch-size 8"));
  EXPECT_THAT(problems_of({.dp_only = true}), HasSubstr("--num-hp"));
}

TEST(Plan, AnEmptyTileNamesTheNodeAndTheLargestGrid) {
  const std::string text = problems_of({.grid = "5x3"});  // the last feature maps are 4x4
  EXPECT_THAT(text, HasSubstr("4x3"));
  EXPECT_THAT(text, HasSubstr("layer3"));
  EXPECT_EQ(problems_of({.grid = "4x3"}), "");
}

Grid grid_of(const PlanOptions& options) { return make_plan(graph(), options).stages[0].grid; }

TEST(Plan, SliceMethodsLayTiles) {
  EXPECT_EQ(grid_of({.num_spatial_parts = "4"}), (Grid{2, 2}));
  EXPECT_EQ(grid_of({.num_spatial_parts = "3"}), (Grid{1, 3}));
  EXPECT_EQ(grid_of({.num_spatial_parts = "4", .slice_method = "vertical"}), (Grid{1, 4}));
  EXPECT_EQ(grid_of({.num_spatial_parts = "4", .slice_method = "horizontal"}), (Grid{4, 1}));
  EXPECT_EQ(grid_of({.grid = "2x3"}), (Grid{2, 3}));
}

TEST(Plan, RanksAreTilesThenLaterStagesAndTheMirrorIsUp) {
  const Plan plan = make_plan(graph(), {.batch_size = 4,
                                        .split_size = 3,
                                        .num_spatial_parts = "4,2",
                                        .schedule = "gems-master",
                                        .times = 2,
                                        .replicas = 2});
  EXPECT_EQ(plan.ranks(), 14);
  EXPECT_EQ(plan.stages[1].ranks, (std::vector<int>{4, 5}));
  EXPECT_EQ(plan.rank_of(Direction::up, 0, 0), 6);
  EXPECT_EQ(plan.rank_of(Direction::up, 2, 0), 0);
  EXPECT_EQ(plan.places_of(5), (std::vector<Plan::Place>{{Direction::down, 1, 1}, {Direction::up, 0, 1}}));
  EXPECT_EQ(plan.global_batch(), 4 * 2 * 2 * 2);
  EXPECT_EQ(sequential_plan(graph(), plan).parts, 8);
}

TEST(Plan, ARankHasABlockOfTilesInTurn) {
  const Plan plan =
      make_plan(graph(), {.batch_size = 4, .split_size = 2, .grid = "2x2", .turns = "2x2,1x2", .schedule = "chimera"});
  EXPECT_EQ(plan.ranks(), 5);
  EXPECT_EQ(plan.places(), 18);
  EXPECT_TRUE(plan.turns());
  EXPECT_EQ(plan.stages[0].grid, (Grid{4, 4}));
  std::vector<int> holders;
  for (int m = 0; m < 16; ++m) holders.push_back(plan.rank_of(Direction::down, 0, m));
  EXPECT_EQ(holders, (std::vector<int>{0, 0, 1, 1,  //
                                       0, 0, 1, 1,  //
                                       2, 2, 3, 3,  //
                                       2, 2, 3, 3}));
  EXPECT_EQ(plan.ranks_of(Direction::up, 1), (std::vector<int>{0}));
  EXPECT_EQ(plan.first_places_of(4), (std::vector<Plan::Place>{{Direction::down, 1, 0}, {Direction::up, 0, 0}}));
  std::vector<bool> seen(18);
  for (int s = 0; s < 2; ++s)
    for (int m = 0; m < plan.stages[static_cast<std::size_t>(s)].members(); ++m)
      seen[static_cast<std::size_t>(plan.number_of(Direction::up, s, m))] = true;
  EXPECT_EQ(seen, std::vector<bool>(18, true));
}

TEST(Plan, SamplesOfAStepAreCountedOnce) {
  for (const char* scope : {"micro", "global"}) {
    const Plan plan = make_plan(
        graph(),
        {.batch_size = 6, .parts = 3, .split_size = 2, .schedule = "chimera", .replicas = 2, .batch_norm = scope});
    std::vector<int> seen(static_cast<std::size_t>(plan.global_batch()));
    for (int r = 0; r < 2; ++r)
      for (const Direction d : {Direction::down, Direction::up})
        for (int m = 0; m < plan.micros(d); ++m)
          for (int i = 0; i < plan.micro_size(); ++i) ++seen[static_cast<std::size_t>(plan.first_sample(r, d, m) + i)];
    EXPECT_THAT(seen, testing::Each(1)) << scope;
  }
}

TEST(Plan, TheLauncherMustStartAsManyRanksAsThePlanNeeds) {
  EXPECT_THAT(problems_of({}, 3), HasSubstr("mpirun -np 1"));
  EXPECT_EQ(problems_of({}, 1), "");
}

TEST(Schedule, OneMicroGoesBackBeforeTheNextOneStarts) {
  const Plan plan = make_plan(graph(), {.batch_size = 6, .parts = 3});
  std::ostringstream picture;
  const auto lists = make_schedule(plan);
  for (const auto& action : lists[0]) picture << action << ' ';
  EXPECT_EQ(picture.str(), "F0 B0 F1 B1 F2 B2 S ");
}

TEST(PlanFlags, AreTheOptionsAndBack) {
  const PlanOptions options{.batch_size = 12,
                            .parts = 3,
                            .split_size = 2,
                            .balance = "3,2",
                            .grid = "2x2",
                            .spatial_size = 1,
                            .schedule = "gpipe",
                            .local_dp = 2,
                            .halo_d2 = true};
  const PlanFlags flags = flags_of(options);
  PlanOptions again;
  for (const auto& [name, value] : flags) set_flag(again, name, value);
  EXPECT_EQ(flags_of(again), flags);
  EXPECT_EQ(words_of(flags),
            "--batch-size 12 --parts 3 --split-size 2 --balance 3,2 --schedule gpipe --grid 2x2 --spatial-size 1 "
            "--local-DP 2 --halo-D2");
  EXPECT_TRUE(flags_of(PlanOptions{}).empty());
  EXPECT_THROW(set_flag(again, "lr", "1"), UsageError);
  EXPECT_THROW(set_flag(again, "parts", "many"), UsageError);
}

// Counted rank by rank.
TEST(Plan, RanksAtWorkBesideAreThoseOfTheStageOnTheNode) {
  Plan plan;
  plan.batch_size = plan.parts = 1;
  plan.stages = {{.grid = {1, 3}, .ranks = {0, 1, 2}}, {.ranks = {3}}, {.grid = {1, 2}, .ranks = {4, 5}}};
  for (const std::int64_t replicas : {1, 3, 5})
    for (const std::int64_t per_node : {0, 1, 4, 6, 7, 100}) {
      plan.replicas = replicas;
      plan.ranks_per_node = per_node;
      const auto stage_of = [&](int rank) { return rank % 6 < 3 ? 0 : rank % 6 < 4 ? 1 : 2; };
      const int node = per_node > 0 ? static_cast<int>(per_node) : plan.ranks();
      for (int rank = 0; rank < plan.ranks(); ++rank) {
        int count = 0;
        for (int r = 0; r < plan.ranks(); ++r)
          count += r / node == rank / node && stage_of(r) == stage_of(rank) ? 1 : 0;
        EXPECT_EQ(plan.ranks_at_work_beside(rank), count) << replicas << " " << per_node << " " << rank;
      }
    }
}

}  // namespace
}  // namespace tessera
