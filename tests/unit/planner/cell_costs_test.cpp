#include "tessera/planner/cell_costs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/models/registry.h"

namespace tessera {
namespace {

Work work(double each) { return {each, each, each}; }

TEST(CellCosts, BeyondWhatIsKnownTimeIsInProportion) {
  CellCosts costs(1);
  costs.add(0, 1, 2, work(6));
  EXPECT_DOUBLE_EQ(costs.at(0, 1, 1).forward, 3);
  EXPECT_DOUBLE_EQ(costs.at(0, 1, 8).forward, 24);
}

TEST(CellCosts, BetweenTwoSizesASampleTakesWhatLiesBetween) {
  CellCosts costs(1);
  costs.add(0, 1, 1, work(4));
  costs.add(0, 1, 4, work(8));  // 2 a sample
  // Half way on a scale of factors: 3 a sample.
  EXPECT_DOUBLE_EQ(costs.at(0, 1, 2).forward, 6);
  EXPECT_DOUBLE_EQ(costs.at(0, 1, 4).forward, 8);
}

TEST(CellCosts, ThreadsThatNobodyTriedAreTheNearest) {
  CellCosts costs(1);
  costs.add(0, 1, 1, work(4));
  costs.add(0, 8, 1, work(1));
  EXPECT_DOUBLE_EQ(costs.at(0, 2, 1).forward, 4);
  EXPECT_DOUBLE_EQ(costs.at(0, 7, 1).forward, 1);
}

TEST(CellCosts, EstimatesGrowWithWhatACellComputes) {
  const Graph graph = builtin_models().build({.name = "resnet18", .image = {3, 64, 64}, .classes = 10});
  const Rates rates = usual_rates(/*gpu=*/false, 1, 4);
  const CellCosts costs = estimated_costs(graph, 4, Recompute::norm, rates);
  ASSERT_EQ(costs.cells(), static_cast<int>(graph.cells().size()));
  double all = 0;
  for (const double t : costs.totals(1, 1)) all += t;
  // The last cell, a pool and a linear layer, is next to nothing.
  EXPECT_LT(costs.totals(1, 1).back(), 0.1 * all);
}

TEST(CellCosts, SmallTilesStillStartTheirKernels) {
  const Graph graph = builtin_models().build({.name = "resnet18", .image = {3, 64, 64}, .classes = 10});
  Rates rates = usual_rates(/*gpu=*/true, 1, 4);
  rates.start = 1;  // nothing else counts
  const CellCosts costs = estimated_costs(graph, 4, Recompute::norm, rates);
  for (int cell = 0; cell < costs.cells(); ++cell)
    EXPECT_NEAR(costs.at(cell, 1, 1.0 / 64).forward, costs.at(cell, 1, 16).forward, 1e-3);
}

TEST(CellCosts, BlocksThatAreMadeAgainTakeOneMoreForward) {
  const Graph graph = builtin_models().build({.name = "resnet18", .image = {3, 64, 64}, .classes = 10});
  const Rates rates = usual_rates(/*gpu=*/false, 1, 4);
  const CellCosts kept = estimated_costs(graph, 4, Recompute::norm, rates);
  const CellCosts made_again = estimated_costs(graph, 4, Recompute::block, rates);
  for (int cell = 0; cell < kept.cells(); ++cell)
    EXPECT_DOUBLE_EQ(made_again.totals(1, 1)[static_cast<std::size_t>(cell)],
                     kept.totals(1, 1)[static_cast<std::size_t>(cell)] + kept.at(cell, 1, 1).forward);
}

TEST(StageSeconds, AStageIsTheSumOfItsCellsOverItsRanks) {
  const Graph graph = builtin_models().build({.name = "resnet_v1", .image = {3, 32, 32}, .classes = 3, .depth = 8});
  CellCosts costs(static_cast<int>(graph.cells().size()));
  for (int c = 0; c < costs.cells(); ++c) costs.add(c, 1, 1, work(c + 1));
  const Plan plan = make_plan(graph, {.batch_size = 4, .split_size = 2, .grid = "2x2", .spatial_size = 1});
  double first = 0;
  for (std::int64_t c = 0; c < cells_of(graph, plan.stages[0]).end; ++c) first += static_cast<double>(c + 1);
  // Four samples over four tiles.
  EXPECT_DOUBLE_EQ(stage_seconds(graph, plan, 0, costs, 1).forward, first);
}

}  // namespace
}  // namespace tessera
