#include "tessera/plan/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/models/registry.h"
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
  const std::string text =
      problems_of({.batch_size = 0, .parts = 0, .split_size = 2, .num_spatial_parts = "4", .times = 1});
  for (const char* flag : {"--batch-size", "--parts", "--split-size", "--num-spatial-parts", "--times"})
    EXPECT_THAT(text, HasSubstr(flag));
}

TEST(Plan, FlagsThatAskForNothingAreAccepted) {
  EXPECT_EQ(problems_of({.batch_size = 4, .split_size = 1, .num_spatial_parts = "1", .local_dp = 1}), "");
}

TEST(Plan, WhatComesLaterIsRefusedNotIgnored) {
  EXPECT_THAT(problems_of({.slice_method = "vertical"}), HasSubstr("--slice-method"));
  EXPECT_THAT(problems_of({.halo_d2 = true}), HasSubstr("--halo-D2"));
  EXPECT_THAT(problems_of({.fused_layers = 2}), HasSubstr("--fused-layers"));
  EXPECT_THAT(problems_of({.local_dp = 2}), HasSubstr("--local-DP"));
  EXPECT_THAT(problems_of({.balance = "3,2"}), HasSubstr("--balance"));
  EXPECT_THAT(problems_of({.spatial_size = 1}), HasSubstr("--spatial-size"));
}

TEST(Plan, TheLauncherMustStartAsManyRanksAsThePlanNeeds) {
  EXPECT_THAT(problems_of({}, 3), HasSubstr("mpirun -np 1"));
  EXPECT_EQ(problems_of({}, 1), "");
}

TEST(Schedule, OneMicroGoesBackBeforeTheNextOneStarts) {
  const Plan plan = make_plan(graph(), {.batch_size = 6, .parts = 3});
  std::ostringstream picture;
  for (const auto& action : schedule_for(plan, 0)) picture << action << ' ';
  EXPECT_EQ(picture.str(), "F0 B0 F1 B1 F2 B2 S ");
}

}  // namespace
}  // namespace tessera
