// How long is too long, and what is said before that.
#include "tessera/comm/waiting.h"

#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "tessera/comm/threads/thread_communicator.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Seconds = Waiting::Seconds;

TEST(Waiting, TheFirstStepMayTakeLongAndLaterOnesAsLongAsTheirLikes) {
  Waiting waiting;
  EXPECT_EQ(waiting.limit(), Seconds(1800));
  EXPECT_EQ(waiting.notice(), Seconds(60));
  waiting.step_took(Seconds(0.1));
  EXPECT_EQ(waiting.limit(), Seconds(300));
  EXPECT_EQ(waiting.notice(), Seconds(10));
  waiting.step_took(Seconds(100));
  waiting.step_took(Seconds(1));
  EXPECT_EQ(waiting.limit(), Seconds(2000));
  EXPECT_EQ(waiting.notice(), Seconds(300));
}

TEST(Waiting, AGivenLimitStandsAndTheLineComesLongBefore) {
  Waiting waiting(Seconds(20));
  waiting.step_took(Seconds(100));
  EXPECT_EQ(waiting.limit(), Seconds(20));
  EXPECT_EQ(waiting.notice(), Seconds(4));
}

// Who has waited for whom, for what, how long, and in which part of its work.
TEST(Waiting, ALongWaitIsToldBeforeItIsOver) {
  testing::internal::CaptureStderr();
  run_thread_ranks(2,
                   [](Communicator& c) {
                     const at::Tensor tensor = at::zeros({4}, at::kFloat);
                     c.waiting().set_doing([] { return std::string("step 3"); });
                     if (c.rank() == Rank{0}) c.receive(tensor, Rank{1}, Tag{7}).wait();
                     if (c.rank() == Rank{1}) {
                       std::this_thread::sleep_for(std::chrono::milliseconds(900));
                       c.send(tensor, Rank{0}, Tag{7}).wait();
                     }
                   },
                   {.timeout = std::chrono::seconds(2)});
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_THAT(text,
              HasSubstr("rank 0 has waited 0.4 s for rank 1: receive of 16 bytes, movement 7 of micro 0, forward, "
                        "in world, in step 3; it gives up after 2.0 s (--timeout)\n"));
  EXPECT_THAT(text, HasSubstr("has waited 0.8 s"));
}

TEST(Waiting, AShortWaitIsNotToldAtAll) {
  testing::internal::CaptureStderr();
  run_thread_ranks(3, [](Communicator& c) { c.barrier(); });
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

}  // namespace
}  // namespace tessera
