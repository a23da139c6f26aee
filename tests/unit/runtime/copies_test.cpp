#include "tessera/runtime/copies.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "support/ranks.h"
#include "tessera/runtime/optimizer.h"

namespace tessera::test {
namespace {

Copies copies_of(Communicator& c) { return Copies(c.split(0, c.rank().value), at::kCPU); }

TEST(Copies, AloneHaveEverythingToThemselves) {
  const Copies alone;
  EXPECT_EQ(alone.group(), nullptr);
  EXPECT_EQ(alone.count(), 1);
  EXPECT_FALSE(alone.common());
  EXPECT_EQ(alone.share(100), (Interval{0, 100}));
  EXPECT_TRUE(alone.writes(7));
  EXPECT_EQ(alone.zeros(5, at::kDouble).numel(), 5);
  alone.settle();
}

TEST(Copies, OnGpusHaveNothingInCommon) {
  on_ranks(most_ranks(2), [](Communicator& c) { EXPECT_FALSE(Copies(c.split(0, 0), at::kCUDA).common()); });
}

TEST(Copies, SharesCoverEverythingOnce) {
  on_ranks(most_ranks(4), [](Communicator& c) {
    const Copies copies = copies_of(c);
    ASSERT_EQ(copies.common(), ranks_are_threads());
    for (const std::int64_t elements : {0, 1, 63, 64, 65, 1000, 100'003}) {
      at::Tensor written = at::zeros({elements + 1}, at::kLong);
      const Interval mine = copies.share(elements);
      written.narrow(0, mine.begin, mine.size()).fill_(1);
      at::Tensor things = at::zeros({10}, at::kLong);
      for (std::int64_t i = 0; i < 10; ++i) things[i].fill_(copies.writes(i) ? 1 : 0);
      c.all_reduce(written).wait();
      c.all_reduce(things).wait();
      const std::int64_t writers = copies.common() ? 1 : c.size();
      EXPECT_TRUE(written.narrow(0, 0, elements).eq(writers).all().item<bool>()) << elements;
      EXPECT_TRUE(things.eq(writers).all().item<bool>());
      if (copies.common()) {  // so that nobody waits for another
        EXPECT_NEAR(static_cast<double>(mine.size()), static_cast<double>(elements) / c.size(), 64);
      }
    }
  });
}

// Each has gradients of its own, as after the sync; what they keep together is what one alone would have.
TEST(Copies, OptimizeTogetherLikeOneAlone) {
  for (const OptimizerOptions& options :
       {OptimizerOptions{.lr = 0.1, .weight_decay = 0.01}, OptimizerOptions{.lr = 0.1, .momentum = 0},
        OptimizerOptions{.name = "adam", .lr = 0.1}, OptimizerOptions{.name = "adamw", .weight_decay = 0.1}})
    for (const std::int64_t elements : {10, 200'003})
      on_ranks(most_ranks(3), [&](Communicator& c) {
        const Copies copies = copies_of(c);
        const at::Tensor values = copies.zeros(elements, at::kDouble), expected = at::zeros({elements}, at::kDouble);
        const at::Tensor gradients = at::arange(elements, at::kDouble).remainder(17).sub(8);
        Optimizer together(options, values, gradients, copies), alone(options, expected, gradients);
        for (int step = 0; step < 3; ++step) {
          together.step(0.1);
          alone.step(0.1);
          copies.settle();
          EXPECT_TRUE(at::equal(values, expected)) << options.name << ", step " << step;
          const auto states = together.state(), states_alone = alone.state();
          ASSERT_EQ(states.size(), states_alone.size());
          for (std::size_t i = 0; i < states.size(); ++i)
            EXPECT_TRUE(at::equal(states[i].values, states_alone[i].values)) << states[i].name;
          copies.settle();
        }
      });
}

}  // namespace
}  // namespace tessera::test
