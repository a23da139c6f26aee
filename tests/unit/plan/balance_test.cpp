#include "tessera/plan/balance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>

#include "tessera/base/error.h"
#include "tessera/models/registry.h"
#include "tessera/program/program.h"

namespace tessera {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// A chain of convolutions, one a cell, of the given output channels.
Graph chain(const std::vector<std::int64_t>& channels) {
  Graph g;
  g.cell("cell0");
  Value x = g.input({1, 8, 8});
  for (std::size_t i = 0; i < channels.size(); ++i) {
    if (i > 0) g.cell(concat("cell", i));
    x = g.conv(x, {.out = channels[i], .kernel = {3, 3}, .pad = {1, 1}}, concat("conv", i));
  }
  return g;
}

Graph resnet() { return builtin_models().build({.name = "resnet50", .image = {3, 64, 64}, .classes = 10}); }

double cost_of(const Graph& graph, BalanceBy by, int first_cell, int end_cell, std::int64_t ranks) {
  double shared = 0, whole = 0;
  const Program program(graph, {0, static_cast<int>(graph.nodes().size())}, Recompute::norm);
  for (std::size_t n = 0; n < graph.nodes().size(); ++n) {
    const Node& node = graph.nodes()[n];
    if (node.cell < first_cell || node.cell >= end_cell) continue;
    if (by == BalanceBy::time)
      shared += node_work(graph, node, 1).total();
    else if (program.keep[n] == Keep::stored)
      shared += static_cast<double>(node.shape.elements());
    if (by == BalanceBy::memory)
      for (const auto& spec : node.parameters) whole += 3 * static_cast<double>(spec.elements());
  }
  return shared / static_cast<double>(ranks) + whole;
}

double worst_stage(const Graph& graph, BalanceBy by, const std::vector<int>& cells,
                   const std::vector<std::int64_t>& ranks) {
  double worst = 0;
  for (std::size_t s = 0, first = 0; s < cells.size(); first += static_cast<std::size_t>(cells[s++]))
    worst = std::max(worst, cost_of(graph, by, static_cast<int>(first), static_cast<int>(first) + cells[s], ranks[s]));
  return worst;
}

// By looking at every way to cut.
double best_worst_stage(const Graph& graph, BalanceBy by, const std::vector<std::int64_t>& ranks) {
  const int cells = static_cast<int>(graph.cells().size());
  double best = std::numeric_limits<double>::infinity();
  std::vector<int> cut;
  const std::function<void(int)> add_stages = [&](int left) {
    if (cut.size() + 1 == ranks.size()) {
      cut.push_back(left);
      best = std::min(best, worst_stage(graph, by, cut, ranks));
      cut.pop_back();
      return;
    }
    for (int count = 1; count < left; ++count) {
      cut.push_back(count);
      add_stages(left - count);
      cut.pop_back();
    }
  };
  add_stages(cells);
  return best;
}

std::string problem(const std::function<void()>& f) {
  try {
    f();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

std::vector<int> balance(const Graph& graph, const std::vector<std::int64_t>& ranks, BalanceBy by = BalanceBy::time) {
  return balance_cells(graph, static_cast<int>(ranks.size()), by, ranks);
}

TEST(Balance, OneStageTakesAllCells) { EXPECT_THAT(balance(chain({4, 4, 4}), {1}), ElementsAre(3)); }

TEST(Balance, EqualCellsAreSharedEvenly) {
  // The first one is cheap: it has one input channel.
  EXPECT_THAT(balance(chain({64, 64, 64, 64, 64, 64, 64}), {1, 1, 1}), ElementsAre(3, 2, 2));
}

TEST(Balance, AHeavyCellStandsAlone) {
  EXPECT_THAT(balance(chain({8, 8, 512, 512, 8, 8}), {1, 1, 1}), ElementsAre(3, 1, 2));
}

TEST(Balance, AStageOfMoreRanksTakesMore) {
  const Graph graph = chain({64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64});
  EXPECT_THAT(balance(graph, {1, 1}), ElementsAre(6, 5));
  EXPECT_THAT(balance(graph, {4, 1}), ElementsAre(9, 2));
}

TEST(Balance, TheWorstStageIsAsGoodAsAnyCutAllows) {
  const Graph graph = resnet();
  for (const auto by : {BalanceBy::time, BalanceBy::memory})
    for (const auto& ranks : std::vector<std::vector<std::int64_t>>{
             {1, 1}, {4, 1}, {1, 1, 1}, {4, 2, 1}, {1, 2, 1, 1}, {1, 1, 1, 1, 1}, {4, 1, 1, 1}}) {
      const auto cells = balance(graph, ranks, by);
      EXPECT_EQ(std::accumulate(cells.begin(), cells.end(), 0), static_cast<int>(graph.cells().size()));
      EXPECT_GE(*std::min_element(cells.begin(), cells.end()), 1);
      const double best = best_worst_stage(graph, by, ranks);
      EXPECT_NEAR(worst_stage(graph, by, cells, ranks), best, 1e-6 * best) << testing::PrintToString(ranks);
    }
}

// The second cell is the worst stage whatever the others do; these must not be left to chance.
TEST(Balance, StagesThatAreNotTheWorstAreBalancedToo) {
  EXPECT_THAT(balance(chain({512, 8, 8, 8, 8, 8, 8, 8}), {1, 1, 1, 1}), ElementsAre(1, 1, 3, 3));
}

TEST(Balance, MemoryCountsPixelsByTheirTileAndParametersInFull) {
  // Wide layers at a low resolution have parameters, narrow ones at a high resolution have pixels.
  const auto time = balance(resnet(), {4, 1}, BalanceBy::time);
  const auto memory = balance(resnet(), {4, 1}, BalanceBy::memory);
  EXPECT_NE(time, memory);
}

TEST(Balance, WorkCountsMemoryBoundNodes) {
  Graph g;
  const Value x = g.input({64, 32, 32});
  const Value r = g.relu(x);
  const Work work = node_work(g, g.node(r), 2);
  const double elements = 2 * 64 * 32 * 32;
  EXPECT_GT(work.forward, 10 * elements) << "two elements moved for one operation";
  EXPECT_GT(work.input_gradient, 10 * elements);
  EXPECT_EQ(work.weight_gradient, 0) << "it has no weights";
  EXPECT_DOUBLE_EQ(work.total(), work.forward + work.input_gradient);
}

TEST(Balance, MoreStagesThanCellsNamesTheFlag) {
  const std::string text = problem([] { balance(chain({4, 4}), {1, 1, 1}); });
  EXPECT_THAT(text, HasSubstr("--split-size 3"));
  EXPECT_THAT(text, HasSubstr("use --split-size 2 or less"));
}

TEST(Balance, AsManyStagesAsCellsGivesEachOne) {
  EXPECT_THAT(balance(chain({4, 400, 4}), {1, 1, 1}), ElementsAre(1, 1, 1));
}

TEST(ParseBalance, ListsTheCellsOfEachStage) {
  EXPECT_THAT(parse_balance("5,7,6", 3, 18), ElementsAre(5, 7, 6));
  EXPECT_THAT(parse_balance("4", 1, 4), ElementsAre(4));
}

TEST(ParseBalance, WhatIsWrongNamesTheFlag) {
  const auto complaint = [](const std::string& text) { return problem([&] { parse_balance(text, 3, 18); }); };
  EXPECT_THAT(complaint("5,7"), HasSubstr("--balance 5,7 is for 2 stages but there are 3"));
  EXPECT_THAT(complaint("5,7,3,3"), HasSubstr("--balance 5,7,3,3 is for 4 stages but there are 3"));
  EXPECT_THAT(complaint("5,7,7"), HasSubstr("--balance 5,7,7 adds up to 19 cells but the network has 18"));
  EXPECT_THAT(complaint("18,0,0"), HasSubstr("at least 1"));
  EXPECT_THAT(complaint("20,-1,-1"), HasSubstr("at least 1"));
  for (const char* text : {"", "5,,6", "5,7,6,", "5;7;6", "a,b,c", "5,7,6.0", "99999999999,1,1"})
    EXPECT_THAT(complaint(text), HasSubstr("--balance")) << text;
}

}  // namespace
}  // namespace tessera
