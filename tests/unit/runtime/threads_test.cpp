#include "tessera/runtime/threads.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <thread>

namespace tessera {
namespace {

TEST(Threads, EveryRankKeepsItsOwnNumber) {
  std::jthread([] {
    use_threads(1, 2);
    std::jthread([] {
      use_threads(3, 2);
      EXPECT_EQ(at::get_num_threads(), 3);
    }).join();
    EXPECT_EQ(at::get_num_threads(), 1) << "what another rank set later is not this one's";
    use_threads(2, 2);
    EXPECT_EQ(at::get_num_threads(), 2);
  }).join();
}

}  // namespace
}  // namespace tessera
