#include "tessera/planner/plan_search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/models/registry.h"

namespace tessera {
namespace {

using testing::Each;
using testing::HasSubstr;

Graph network(std::int64_t size = 64) {
  return builtin_models().build({.name = "resnet_v1", .image = {3, size, size}, .classes = 3, .depth = 20});
}

SearchWish wish(std::vector<int> ranks, std::int64_t batch) {
  SearchWish w{.plan = {.batch_size = batch}, .ranks = std::move(ranks)};
  w.threads = [](const Plan&, int) { return 1; };
  w.site = [](int) {
    return Site{.links = {.message = 1e-6, .message_bytes = 1e10, .agreement = 1e-6, .sum_bytes = 1e10}};
  };
  return w;
}

CellCosts even_costs(const Graph& graph) {
  CellCosts costs(static_cast<int>(graph.cells().size()));
  for (int c = 0; c < costs.cells(); ++c) costs.add(c, 1, 1, {1, 1, 1});
  return costs;
}

TEST(PlanSearch, FastestFirstAndAllOfTheBatchThatIsAskedFor) {
  const Graph graph = network();
  const SearchResult found = search_plans(graph, wish({4}, 8), even_costs(graph));
  ASSERT_GE(found.best.size(), 3u);
  for (std::size_t i = 0; i < found.best.size(); ++i) {
    const Candidate& c = found.best[i];
    EXPECT_EQ(c.plan.ranks(), 4);
    EXPECT_EQ(c.plan.global_batch(), 8) << words_of(c.flags());
    if (i > 0) {
      EXPECT_GE(found.best[i - 1].images_per_second(), c.images_per_second());
    }
  }
  // Four ranks are close to four times as fast where nothing stands in the way.
  const double one = search_plans(graph, wish({1}, 8), even_costs(graph)).best.front().images_per_second();
  EXPECT_GT(found.best.front().images_per_second(), 3.5 * one);
}

TEST(PlanSearch, TheFlagsOfACandidateMakeItsPlan) {
  const Graph graph = network();
  for (const Candidate& c : search_plans(graph, wish({6}, 12), even_costs(graph)).best) {
    PlanOptions options;
    for (const auto& [name, value] : c.flags())
      if (name != "recompute") set_flag(options, name, value);
    EXPECT_EQ(plan_table(make_plan(graph, options), graph, 4), plan_table(c.plan, graph, 4)) << words_of(c.flags());
  }
}

TEST(PlanSearch, GivenFlagsStay) {
  const Graph graph = network();
  SearchWish w = wish({4}, 8);
  w.plan.split_size = 2;
  w.plan.parts = 2;
  w.given = {"split-size", "parts"};
  for (const Candidate& c : search_plans(graph, w, even_costs(graph)).best) {
    EXPECT_EQ(c.plan.stages.size(), 2u);
    EXPECT_EQ(c.plan.parts, 2);
  }
  w.plan = {.batch_size = 8, .grid = "1x4"};
  w.given = {"grid"};
  for (const Candidate& c : search_plans(graph, w, even_costs(graph)).best)
    EXPECT_EQ(c.plan.stages[0].grid, (Grid{1, 4})) << words_of(c.flags());
}

TEST(PlanSearch, ABatchOfOneImageIsDividedIntoTiles) {
  const Graph graph = network();
  const SearchResult found = search_plans(graph, wish({4}, 1), even_costs(graph));
  EXPECT_EQ(found.best.front().plan.stages[0].grid.tiles(), 4) << words_of(found.best.front().flags());
}

TEST(PlanSearch, SlowLinksAreAvoided) {
  const Graph graph = network();
  SearchWish w = wish({4}, 8);
  w.site = [](int) { return Site{.links = {.message = 10, .message_bytes = 1e3, .agreement = 10, .sum_bytes = 1e9}}; };
  // Copies of the network talk once a step, tiles at every layer.
  EXPECT_EQ(search_plans(graph, w, even_costs(graph)).best.front().plan.replicas, 4);
}

TEST(PlanSearch, WhatDoesNotFitIsNotTaken) {
  const Graph graph = network(256);
  SearchWish w = wish({1, 2, 4}, 4);
  const SearchResult free = search_plans(graph, w, even_costs(graph));
  w.memory = 0.5 * free.best.front().peak();
  const SearchResult tight = search_plans(graph, w, even_costs(graph));
  ASSERT_FALSE(tight.best.empty());
  for (const Candidate& c : tight.best) EXPECT_LE(c.peak(), w.memory) << words_of(c.flags());
  w.memory = 1000;
  const SearchResult nothing = search_plans(graph, w, even_costs(graph));
  EXPECT_TRUE(nothing.best.empty());
  ASSERT_TRUE(nothing.smallest);
  EXPECT_GT(nothing.smallest->peak(), 1000);
}

TEST(PlanSearch, TheBatchGrowsOnlyWhereItMay) {
  const Graph graph = network();
  SearchWish w = wish({2}, 2);
  for (const Candidate& c : search_plans(graph, w, even_costs(graph)).best) EXPECT_EQ(c.plan.global_batch(), 2);
  w.batch_at_most = 8;
  std::int64_t most = 0;
  for (const Candidate& c : search_plans(graph, w, even_costs(graph)).best)
    most = std::max(most, c.plan.global_batch());
  EXPECT_EQ(most, 8);
}

TEST(PlanSearch, StagesAreBalancedByWhatCellsTake) {
  const Graph graph = network();
  CellCosts costs = even_costs(graph);
  costs.add(0, 1, 1, {100, 100, 100});  // the stem takes longer than all others together
  SearchWish w = wish({2}, 8);
  w.plan.split_size = 2;
  w.given = {"split-size"};
  const SearchResult found = search_plans(graph, w, costs);
  EXPECT_EQ(cells_of(graph, found.best.front().plan.stages[0]).end, 1) << words_of(found.best.front().flags());
}

TEST(PlanSearch, NoPlanAtAllIsAnErrorThatSaysWhy) {
  const Graph graph = network();
  SearchWish w = wish({3}, 8);
  w.plan.grid = "2x2";
  w.given = {"grid"};
  try {
    search_plans(graph, w, even_costs(graph));
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("--ranks"));
  }
}

TEST(KindOf, IsInPlainWords) {
  const Graph graph = network();
  const auto kind = [&](const PlanOptions& o) { return kind_of(make_plan(graph, o)); };
  EXPECT_EQ(kind({}), "one rank");
  EXPECT_EQ(kind({.grid = "2x2"}), "2x2 tiles");
  EXPECT_EQ(kind({.split_size = 3}), "pipeline of 3 stages");
  EXPECT_EQ(kind({.split_size = 2, .grid = "2x2", .spatial_size = 1}), "2x2 tiles before 2 stages");
  EXPECT_EQ(kind({.replicas = 2}), "2 copies of the network");
}

}  // namespace
}  // namespace tessera
