// What happens when ranks that are threads fail. The MPI side of this is tests/mpi/failure.sh.
#include "tessera/comm/threads/thread_communicator.h"

#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string failure_of(int ranks, const std::function<void(Communicator&)>& body, CommunicatorOptions options = {}) {
  try {
    run_thread_ranks(ranks, body, options);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no failure";
}

at::Tensor some() { return at::zeros({8}, at::kFloat); }

TEST(ThreadRanks, TheFirstFailureEndsRanksThatWaitInAnyOperation) {
  using Body = std::function<void(Communicator&)>;
  const std::vector<Body> waits{
      [](Communicator& c) { c.receive(some(), Rank{2}, Tag{1}).wait(); },
      [](Communicator& c) { c.send(some(), Rank{2}, Tag{1}).wait(); },
      [](Communicator& c) { c.all_reduce(some()).wait(); },
      [](Communicator& c) { c.barrier(); },
      [](Communicator& c) { c.split(0, 0); },
      [](Communicator& c) {
        for (Pending in = c.receive(some(), Rank{2}, Tag{1}); !in.test();) std::this_thread::yield();
      },
  };
  for (const Body& wait : waits)
    EXPECT_EQ(failure_of(3,
                         [&](Communicator& c) {
                           if (c.rank() == Rank{2}) throw Error("the disk is on fire");
                           wait(c);
                           ADD_FAILURE() << "went on after another rank failed";
                         }),
              "the disk is on fire");
}

TEST(ThreadRanks, AFailureReachesRanksOfOtherGroups) {
  EXPECT_EQ(failure_of(4,
                       [](Communicator& c) {
                         const auto part = c.split(c.rank().value / 2, 0);
                         if (c.rank() == Rank{3}) throw Error("late");
                         part->receive(some(), Rank{1 - part->rank().value}, Tag{1}).wait();
                       }),
            "late");
}

TEST(ThreadRanks, AbortEndsAllRanksWithItsMessageAndCode) {
  try {
    run_thread_ranks(2, [](Communicator& c) {
      if (c.rank() == Rank{1}) c.abort("loss is not a number", ExitCode::numeric);
      c.barrier();
    });
    FAIL() << "nothing thrown";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "loss is not a number");
    EXPECT_EQ(error.code(), ExitCode::numeric);
  }
}

TEST(ThreadRanks, ACollectiveThatTimesOutNamesTheRanksThatAreMissing) {
  std::atomic<bool> over = false;
  const std::string message = failure_of(3,
                                         [&](Communicator& c) {
                                           if (c.rank() != Rank{0}) {
                                             while (!over) std::this_thread::yield();
                                             return;
                                           }
                                           try {
                                             c.all_reduce(some()).wait();
                                           } catch (...) {
                                             over = true;
                                             throw;
                                           }
                                         },
                                         {.timeout = std::chrono::milliseconds(100)});
  EXPECT_THAT(message, HasSubstr("rank 0 waited 0.1 s for rank 1, rank 2: all_reduce of 32 bytes, in world"));
}

TEST(ThreadRanks, ASendThatTimesOutNamesItsPeer) {
  std::atomic<bool> over = false;
  const std::string message = failure_of(2,
                                         [&](Communicator& c) {
                                           if (c.rank() == Rank{1}) {
                                             while (!over) std::this_thread::yield();
                                             return;
                                           }
                                           try {
                                             c.send(some(), Rank{1}, Tag{5}).wait();
                                           } catch (...) {
                                             over = true;
                                             throw;
                                           }
                                         },
                                         {.timeout = std::chrono::milliseconds(100)});
  EXPECT_THAT(message, HasSubstr("rank 0 waited 0.1 s for rank 1: send of 32 bytes, movement 5 of micro 0, forward"));
}

TEST(ThreadRanks, EndsOfAMessageThatDisagreeFailWithBothSizes) {
  EXPECT_THAT(failure_of(2,
                         [](Communicator& c) {
                           if (c.rank() == Rank{0}) c.send(at::zeros({4}, at::kFloat), Rank{1}, Tag{1}).wait();
                           if (c.rank() == Rank{1}) c.receive(at::zeros({5}, at::kFloat), Rank{0}, Tag{1}).wait();
                         }),
              AllOf(HasSubstr("rank 0 of world sends 16 bytes"), HasSubstr("rank 1, which expects 20 bytes")));
}

TEST(ThreadRanks, CollectivesCalledInDifferentOrdersFailInsteadOfHanging) {
  EXPECT_THAT(failure_of(2,
                         [](Communicator& c) {
                           if (c.rank() == Rank{0}) c.barrier();
                           if (c.rank() == Rank{1}) c.all_reduce(some()).wait();
                         }),
              AllOf(HasSubstr("all_reduce of 32 bytes"), HasSubstr("barrier")));
}

TEST(ThreadRanks, ARankOutsideTheGroupIsRefused) {
  EXPECT_THAT(failure_of(2, [](Communicator& c) { c.send(some(), Rank{2}, Tag{1}).wait(); }),
              HasSubstr("rank 2 is not in world, which has 2 ranks"));
}

}  // namespace
}  // namespace tessera
