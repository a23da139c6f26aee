#include "tessera/planner/scaling.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Ranks work for a second on an image, and for a tenth of one on a sum.
SearchResult search(int ranks, std::int64_t batch) {
  SearchResult result;
  if (ranks == 2) {
    result.smallest = Candidate{};
    return result;
  }
  Candidate c;
  c.plan.batch_size = batch / ranks;
  c.plan.replicas = ranks;
  c.plan.stages = {{.ranks = {0}}};
  c.expected.computing = static_cast<double>(batch) / ranks;
  c.expected.summing = ranks > 1 ? 0.1 : 0;
  c.expected.seconds = c.expected.computing + c.expected.summing;
  result.best.push_back(c);
  return result;
}

TEST(Scaling, StrongKeepsTheBatchAndWeakLetsItGrow) {
  const Scaling s = scaling_of({1, 9}, 8, search);
  std::vector<std::int64_t> ranks, strong, weak;
  for (const auto& p : s.strong) {
    ranks.push_back(p.ranks);
    strong.push_back(p.batch);
  }
  for (const auto& p : s.weak) weak.push_back(p.batch);
  EXPECT_THAT(ranks, ElementsAre(1, 2, 4, 8));
  EXPECT_THAT(strong, ElementsAre(8, 8, 8, 8));
  EXPECT_THAT(weak, ElementsAre(8, 16, 32, 64));
  EXPECT_DOUBLE_EQ(efficiency(s.strong, 0), 1);
  EXPECT_DOUBLE_EQ(efficiency(s.strong, 3), 1 / 1.1);
  EXPECT_DOUBLE_EQ(efficiency(s.weak, 3), 8 / 8.1);
}

TEST(Scaling, WhereNothingFitsThePointSaysSo) {
  const Scaling s = scaling_of({2, 8}, 8, search);
  EXPECT_FALSE(s.strong[0].best);
  EXPECT_THAT(s.strong[0].problem, HasSubstr("no plan fits"));
  EXPECT_DOUBLE_EQ(efficiency(s.strong, 0), 0);
  EXPECT_DOUBLE_EQ(efficiency(s.strong, 1), 1);  // the first that has a plan
}

TEST(Scaling, TheLimitIsWhatTakesMostBesideComputing) {
  EXPECT_EQ(limit_of({.seconds = 10, .computing = 9.9, .summing = 0.1}), "computing");
  EXPECT_EQ(limit_of({.seconds = 10, .computing = 6, .talking = 3, .summing = 1}), "margins and norms");
  EXPECT_EQ(limit_of({.seconds = 10, .computing = 6, .summing = 1}), "waiting for stages");
}

TEST(Scaling, ABadRangeNamesTheFlag) {
  EXPECT_EQ(parse_scaling("4..64"), (std::pair{4, 64}));
  EXPECT_EQ(parse_scaling("8"), (std::pair{8, 8}));
  for (const char* bad : {"", "1..", "..8", "a..b", "1-8", "0..4", "8..4", "1..100000", "1..2..4"}) {
    try {
      parse_scaling(bad);
      ADD_FAILURE() << bad;
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), HasSubstr("--scaling")) << bad;
    }
  }
}

}  // namespace
}  // namespace tessera
