#include "tessera/schedule/timeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plans.h"

namespace tessera {
namespace {

using testing::HasSubstr;
using testing::Not;

std::string timeline_of(const Plan& plan, int columns = 220) {
  return timeline(plan, simulate(plan, make_schedule(plan)), columns);
}

TEST(Timeline, ShowsThePictureAndWhatIsPredicted) {
  EXPECT_EQ(timeline_of(pipeline(ScheduleKind::chimera, 2, 2)),
            "rank 0  F0f0b0--B0--\n"
            "rank 1  f0F0B0--b0--\n"
            "F forward, B backward, small letters: direction up, . waiting\n"
            "\n"
            "rank  stage  waits  live micros\n"
            "-------------------------------\n"
            "   0   0 1'  0.0 %            2\n"
            "   1   1 0'  0.0 %            2\n"
            "predicted bubble: 0.0 % of the step; live micros on a rank: at most 2\n");
}

TEST(Timeline, LabelsHaveRoomForTheLargestMicro) {
  const std::string text = timeline_of(pipeline(ScheduleKind::gpipe, 2, 11));
  EXPECT_THAT(text, HasSubstr("rank 0  F0-F1-F2-F3-F4-F5-F6-F7-F8-F9-F10.........B10---B9----"));
  EXPECT_THAT(text, Not(HasSubstr("last digit")));
}

TEST(Timeline, NumbersAreCutBeforeThePictureIsTooWide) {
  const Plan plan = pipeline(ScheduleKind::gpipe, 2, 11);  // 36 forwards long
  const std::string last_digit = timeline_of(plan, 80);
  EXPECT_THAT(last_digit, HasSubstr("rank 0  F0F1F2F3F4F5F6F7F8F9F0......B0--B9--"));
  EXPECT_THAT(last_digit, HasSubstr("micros by their last digit"));
  const std::string letters = timeline_of(plan, 40);
  EXPECT_THAT(letters, HasSubstr("rank 0  FFFFFFFFFFF...B-B-"));
}

TEST(Timeline, APictureIsNeverWiderThanAsked) {
  for (const auto& plan : many_plans()) {
    std::istringstream text(timeline_of(plan, 60));
    for (std::string line; std::getline(text, line) && line.starts_with("rank ");)
      ASSERT_LE(line.size(), 60u + 9u) << name_of(plan);
  }
}

TEST(Timeline, SixteenMicrosInEightStagesFitWithTheirNumbers) {
  for (const auto kind :
       {ScheduleKind::gpipe, ScheduleKind::one_f_one_b, ScheduleKind::zero_bubble, ScheduleKind::chimera}) {
    const Plan plan = pipeline(kind, 8, 16);
    EXPECT_THAT(timeline(plan, simulate(plan, make_schedule(plan))), Not(HasSubstr("last digit"))) << to_string(kind);
  }
}

TEST(Timeline, UnequalStagesAreDrawnToScale) {
  const Plan plan = pipeline(ScheduleKind::one_f_one_b, 2, 1);
  const std::vector<StageCost> costs{{}, {.forward = 2, .input_gradient = 2, .weight_gradient = 2}};
  EXPECT_THAT(timeline(plan, simulate(plan, make_schedule(plan), costs)), HasSubstr("rank 0  F0............B0--\n"
                                                                                    "rank 1  ..F0--B0------....\n"));
}

TEST(Timeline, ASmallStageDoesNotTakeTheNumbersFromTheOthers) {
  const Plan plan = pipeline(ScheduleKind::one_f_one_b, 4, 12);
  const std::vector<StageCost> costs{{}, {}, {}, {.forward = 0.4, .input_gradient = 0.4, .weight_gradient = 0.01}};
  const std::string text = timeline(plan, simulate(plan, make_schedule(plan), costs), 150);
  EXPECT_THAT(text, HasSubstr("rank 0  F0--F1-F2--F3-."));
  EXPECT_THAT(text, HasSubstr("F10-B7-----F11B8-----"));
  EXPECT_THAT(text, HasSubstr("FB-.......F-B...")) << "half a number would be another number";
}

TEST(Timeline, RanksOfTwoDigitsStayAligned) {
  const std::string text = timeline_of(plan_of(ScheduleKind::gpipe, {10, 1}, 1));
  EXPECT_THAT(text, HasSubstr("rank  0  F0......B0--\n"));
  EXPECT_THAT(text, HasSubstr("rank 10  ..F0B0--....\n"));
}

}  // namespace
}  // namespace tessera
