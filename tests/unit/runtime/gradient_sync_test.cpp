// The sum over all copies, by whatever way: early buckets, local masters, ranks as threads or processes.
#include "tessera/runtime/gradient_sync.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include "support/ranks.h"

namespace tessera::test {
namespace {

// Three buckets and a rest.
constexpr std::int64_t length = 3 * (4 << 20) / 8 + 12345;

// Whole numbers: their sums are exact in any order.
at::Tensor share_of(const Communicator& c, int step) {
  return at::arange(length, at::kDouble).add(7 * c.rank().value).remainder(1000).mul(step + 1 + c.rank().value);
}

at::Tensor one_all_reduce(Communicator& c, int step) {
  at::Tensor sum = share_of(c, step);
  c.all_reduce(sum).wait();
  return sum;
}

std::unique_ptr<Communicator> copy_of(Communicator& c) { return c.split(0, c.rank().value); }

class Sync : public testing::TestWithParam<GradSync> {};

// Backward writes from the end to the front, and tells how far it is. What it has not told of is not there yet.
TEST_P(Sync, BucketsThatStartEarlyAddUpLikeOneAtTheEnd) {
  for (const int ranks : {2, 3, 4}) {
    if (ranks > most_ranks(4)) continue;
    on_ranks(ranks, [&](Communicator& c) {
      const at::Tensor sums = at::full({length}, -1, at::kDouble);
      const auto copies = copy_of(c);
      GradientSync sync(sums, copies.get(), GetParam(), c.rank().value / 2);
      for (int step = 0; step < 3; ++step) {
        const at::Tensor mine = share_of(c, step);
        sums.fill_(-1);
        // Uneven pieces, shorter and longer than a bucket, as nodes are.
        std::int64_t from = length;
        for (const std::int64_t piece : {100'000L, 1'000L, 700'000L, 524'288L, 1L}) {
          from -= piece;
          sums.narrow(0, from, piece).copy_(mine.narrow(0, from, piece));
          sync.complete_from(from);
        }
        sums.narrow(0, 0, from).copy_(mine.narrow(0, 0, from));
        sync.complete_from(0);
        sync.finish();
        EXPECT_TRUE(at::equal(sums, one_all_reduce(c, step))) << c.rank() << ", step " << step;
      }
    });
  }
}

TEST_P(Sync, FinishStartsWhatNobodyReported) {
  on_ranks(most_ranks(4), [&](Communicator& c) {
    const at::Tensor sums = share_of(c, 0);
    const auto copies = copy_of(c);
    GradientSync sync(sums, copies.get(), GetParam(), c.rank().value / 2);
    sync.finish();
    EXPECT_TRUE(at::equal(sums, one_all_reduce(c, 0))) << c.rank();
  });
}

// A direction without a micro has no backward, and its copy of the parameters nothing to report.
TEST_P(Sync, CopiesThatReportAndCopiesThatDoNotUseTheSameBuckets) {
  on_ranks(most_ranks(4), [&](Communicator& c) {
    const at::Tensor sums = share_of(c, 0);
    const auto copies = copy_of(c);
    GradientSync sync(sums, copies.get(), GetParam(), c.rank().value / 2);
    for (int step = 0; step < 2; ++step) {
      sums.copy_(share_of(c, step));
      if (c.rank().value % 2 == 0)
        for (std::int64_t from = length; from > 0; from /= 3) sync.complete_from(from);
      sync.finish();
      EXPECT_TRUE(at::equal(sums, one_all_reduce(c, step))) << c.rank() << ", step " << step;
    }
  });
}

// Numbers whose sum depends on the order: all copies must still agree.
TEST_P(Sync, AllCopiesGetTheSameBits) {
  on_ranks(most_ranks(4), [&](Communicator& c) {
    const at::Tensor sums = share_of(c, 0).mul(0.1).add(1.0 / (c.rank().value + 3));
    at::Tensor plain = sums.clone();
    c.all_reduce(plain).wait();
    const auto copies = copy_of(c);
    GradientSync sync(sums, copies.get(), GetParam(), c.rank().value / 2);
    sync.complete_from(length / 2);
    sync.finish();
    at::Tensor first = sums.clone();
    c.broadcast(first, Rank{0}).wait();
    EXPECT_TRUE(at::equal(sums, first)) << c.rank();
    EXPECT_LT(sums.sub(plain).abs().max().item<double>(), 1e-10);
  });
}

// Nodes with one copy, with several, and with copies that do not stand side by side.
TEST(HierarchicalSync, AnyRanksMayShareANode) {
  for (const auto& nodes : std::vector<std::vector<int>>{{0, 0, 0, 0}, {0, 1, 2, 3}, {0, 1, 1, 1}, {5, 2, 5, 2}}) {
    if (most_ranks(4) < 4) GTEST_SKIP() << "needs four ranks";
    on_ranks(4, [&](Communicator& c) {
      const at::Tensor sums = share_of(c, 0);
      const auto copies = copy_of(c);
      GradientSync sync(sums, copies.get(), GradSync::hierarchical, nodes[static_cast<std::size_t>(c.rank().value)]);
      sync.complete_from(length / 3);
      sync.finish();
      EXPECT_TRUE(at::equal(sums, one_all_reduce(c, 0))) << c.rank();
    });
  }
}

TEST_P(Sync, ASingleCopyIsLeftAsItIs) {
  const at::Tensor sums = at::arange(length, at::kDouble), before = sums.clone();
  GradientSync sync(sums, nullptr, GetParam(), 0);
  for (int step = 0; step < 2; ++step) {
    sync.complete_from(length / 2);
    sync.complete_from(0);
    sync.finish();
  }
  EXPECT_TRUE(at::equal(sums, before));
}

INSTANTIATE_TEST_SUITE_P(Ways, Sync, testing::Values(GradSync::flat, GradSync::hierarchical),
                         [](const auto& way) { return std::string(to_string(way.param)); });

}  // namespace
}  // namespace tessera::test
