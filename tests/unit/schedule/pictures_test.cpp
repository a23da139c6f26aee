// Small schedules as they are drawn in the papers. Capital letters run down, small ones up.
#include <gtest/gtest.h>

#include "plans.h"
#include "tessera/schedule/timeline.h"

namespace tessera {
namespace {

// The lines of the timeline, without the ranks.
std::string picture(const Plan& plan) {
  std::istringstream text(timeline(plan, simulate(plan, make_schedule(plan))));
  std::string out;
  for (std::string line; std::getline(text, line) && line.starts_with("rank ");) out += line.substr(8) + "\n";
  return out;
}

TEST(Pictures, OneStageTakesEachMicroForwardAndBackBeforeTheNext) {
  for (const auto kind : {ScheduleKind::gpipe, ScheduleKind::one_f_one_b, ScheduleKind::zero_bubble})
    EXPECT_EQ(words(make_schedule(pipeline(kind, 1, 3)).front()), "F0 B0 F1 B1 F2 B2 S") << to_string(kind);
}

TEST(Pictures, OneStageInTwoDirectionsDoesTheSame) {
  EXPECT_EQ(words(make_schedule(pipeline(ScheduleKind::gems_mast, 1, 2)).front()), "F0 B0 F1 B1 F0' B0' F1' B1' S");
  EXPECT_EQ(words(make_schedule(pipeline(ScheduleKind::chimera, 1, 3)).front()), "F0 B0 F0' B0' F1 B1 S");
}

// Also where training runs in two directions: every rank has a place in direction down.
TEST(Pictures, APassInWhichNothingIsLearnedIsForwardsOfDirectionDown) {
  for (const auto kind : {ScheduleKind::zero_bubble, ScheduleKind::chimera}) {
    const Lists lists = make_forward_schedule(plan_of(kind, {2, 1}, 4), 3);
    ASSERT_EQ(lists.size(), 3u);
    for (const auto& list : lists) EXPECT_EQ(words(list), "F0 F1 F2");
    EXPECT_EQ(lists[1][0].stage, 0);
    EXPECT_EQ(lists[2][0].stage, 1);
  }
}

TEST(Pictures, OneMicroIsLayerParallelism) {
  EXPECT_EQ(picture(pipeline(ScheduleKind::one_f_one_b, 3, 1)),
            "F0............B0--\n"
            "..F0......B0--....\n"
            "....F0B0--........\n");
}

TEST(Pictures, Gpipe) {
  EXPECT_EQ(picture(pipeline(ScheduleKind::gpipe, 3, 4)),
            "F0F1F2F3............B3--B2--B1--B0--\n"
            "..F0F1F2F3......B3--B2--B1--B0--....\n"
            "....F0F1F2F3B3--B2--B1--B0--........\n");
}

TEST(Pictures, OneForwardOneBackward) {
  EXPECT_EQ(picture(pipeline(ScheduleKind::one_f_one_b, 3, 4)),
            "F0F1F2........B0--F3B1--..B2--..B3--\n"
            "..F0F1....B0--F2B1--F3B2--..B3--....\n"
            "....F0B0--F1B1--F2B2--F3B3--........\n");
}

TEST(Pictures, FewerMicrosThanStages) {
  EXPECT_EQ(picture(pipeline(ScheduleKind::one_f_one_b, 4, 2)),
            "F0F1................B0--..B1--\n"
            "..F0F1..........B0--..B1--....\n"
            "....F0F1....B0--..B1--........\n"
            "......F0B0--F1B1--............\n");
}

TEST(Pictures, ZeroBubble) {
  EXPECT_EQ(picture(pipeline(ScheduleKind::zero_bubble, 3, 4)),
            "F0F1F2....B0--F3B1--B2--B3--\n"
            "..F0F1..I0F2I1W0F3I2W1I3W2W3\n"
            "....F0I0F1I1F2I2W0F3I3W1W2W3\n");
}

TEST(Pictures, GemsMastRunsTheSecondBatchInTheMemoryOfTheFirst) {
  EXPECT_EQ(picture(pipeline(ScheduleKind::gems_mast, 3, 1)),
            "F0............B0--f0b0--........\n"
            "..F0......B0--f0........b0--....\n"
            "....F0B0--f0................b0--\n");
}

TEST(Pictures, GemsMasterWithTwoMicrosABatch) {
  EXPECT_EQ(picture(pipeline(ScheduleKind::gems_master, 3, 2)),
            "F0F1..........B0--f0b0--f1B1--b1--........\n"
            "..F0F1....B0--f0..B1--f1b0--......b1--....\n"
            "....F0B0--F1f0B1--f1........b0--......b1--\n");
}

TEST(Pictures, Chimera) {
  EXPECT_EQ(picture(pipeline(ScheduleKind::chimera, 4, 4)),
            "F0F1..f0b0--f1b1--..B0--....B1--\n"
            "..F0f0F1f1..b0--B0--b1--B1--....\n"
            "..f0F0f1F1..B0--b0--B1--b1--....\n"
            "f0f1..F0B0--F1B1--..b0--....b1--\n");
}

TEST(Pictures, MembersOfAStageActTogether) {
  EXPECT_EQ(picture(plan_of(ScheduleKind::one_f_one_b, {2, 1}, 2)),
            "F0F1....B0--..B1--\n"
            "F0F1....B0--..B1--\n"
            "..F0B0--F1B1--....\n");
}

TEST(Pictures, ARankCanBeInTheFirstStageOfBothDirections) {
  EXPECT_EQ(picture(plan_of(ScheduleKind::chimera, {2, 1}, 2)),
            "F0..f0b0--B0--....\n"
            "F0f0......B0--b0--\n"
            "..f0F0B0--....b0--\n");
}

}  // namespace
}  // namespace tessera
