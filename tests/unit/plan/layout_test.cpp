// Where values lie, and what moves: properties over random networks and plans, and small cases by hand.
#include "tessera/plan/layout.h"

#include <gtest/gtest.h>

#include <random>

#include "tessera/base/error.h"
#include "tessera/models/registry.h"

namespace tessera {

// For the messages of failing tests.
static std::ostream& operator<<(std::ostream& out, const Transfer& t) {
  return out << "value " << t.value << " from stage " << t.from << " to " << t.to;
}

namespace {

class Draw {
 public:
  explicit Draw(unsigned seed) : random_(seed) {}
  std::int64_t operator()(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random_);
  }
  template <class T>
  const T& of(const std::vector<T>& all) {
    return all[static_cast<std::size_t>((*this)(0, static_cast<std::int64_t>(all.size()) - 1))];
  }

 private:
  std::mt19937 random_;
};

// Convolutions and pools of any window, point-wise nodes, and sums and joins with anything earlier of the same size.
Graph random_graph(Draw& draw) {
  Graph g;
  g.cell("stem");
  std::vector<Value> values{g.input({3, draw(9, 40), draw(9, 40)})};
  const std::int64_t cells = draw(3, 7);
  for (std::int64_t c = 0; c < cells; ++c) {
    if (c > 0) g.cell(concat("cell", c));
    for (std::int64_t n = draw(1, 4); n > 0; --n) {
      // Mostly on from the last value, sometimes from an earlier one, the image too.
      const Value x = draw(0, 3) > 0 ? values.back() : draw.of(values);
      const std::string name = concat("node", g.nodes().size());
      const std::int64_t kernel = draw(1, 5), stride = draw(1, 4) == 1 ? 2 : 1;
      std::vector<Value> alike;
      for (const Value v : values)
        if (g.shape(v) == g.shape(x)) alike.push_back(v);
      switch (draw(0, 6)) {
        case 0:
        case 1:
          values.push_back(g.conv(x, {.out = 4, .kernel = kernel, .stride = stride, .pad = kernel / 2}, name));
          break;
        case 2:
          values.push_back(g.max_pool(x, {.kernel = 3, .stride = stride, .pad = 1}));
          break;
        case 3:
          values.push_back(g.batch_norm(x, name));
          break;
        case 4:
          values.push_back(g.add(x, draw.of(alike)));
          break;
        case 5:
          values.push_back(g.concat({x, draw.of(alike)}));
          break;
        default:
          values.push_back(g.relu(x));
      }
    }
  }
  g.cell("head");
  g.cross_entropy(g.linear(g.flatten(g.global_avg_pool(values.back())), {.out = 4}, "fc"));
  return g;
}

// Any cut into stages, each on any grid or with any shares of a micro. Tiles may be empty.
Plan random_plan(const Graph& graph, Draw& draw) {
  const int cells = static_cast<int>(graph.cells().size());
  Plan plan;
  plan.parts = 1;
  plan.batch_size = 12;
  plan.fused_layers = draw(0, 3);
  plan.schedule = draw(0, 1) == 0 ? ScheduleKind::one_f_one_b : ScheduleKind::chimera;
  int rank = 0;
  for (int cell = 0; cell < cells;) {
    const int end = std::min(cells, cell + static_cast<int>(draw(1, 3)));
    Stage stage;
    stage.first_node = graph.cells()[static_cast<std::size_t>(cell)].first_node;
    stage.end_node =
        end == cells ? static_cast<int>(graph.nodes().size()) : graph.cells()[static_cast<std::size_t>(end)].first_node;
    stage.grid = {draw(1, 4), draw(1, 4)};
    stage.batch_ways = draw(1, 3);
    for (std::int64_t m = 0; m < stage.grid.tiles() * stage.batch_ways; ++m) stage.ranks.push_back(rank++);
    plan.stages.push_back(stage);
    cell = end;
  }
  return plan;
}

struct Case {
  explicit Case(unsigned seed)
      : draw(seed), graph(random_graph(draw)), plan(random_plan(graph, draw)), layout(make_layout(graph, plan)) {}

  // Calls what(stage, value, its layout) for every value that a stage has to do with.
  template <class What>
  void each_used(const What& what) const {
    for (int s = 0; s < static_cast<int>(plan.stages.size()); ++s)
      for (int v = 0; v < static_cast<int>(graph.nodes().size()); ++v)
        if (layout.at(s, v).used()) what(s, v, layout.at(s, v));
  }
  const Stage& stage(int s) const { return plan.stages[static_cast<std::size_t>(s)]; }
  bool inside(int s, int node) const { return stage(s).first_node <= node && node < stage(s).end_node; }
  bool made_in(int s, int v) const { return v != 0 && inside(s, v); }
  Box whole(int v, const Interval& samples) const { return graph.shape({v}).box(samples); }

  Draw draw;
  Graph graph;
  Plan plan;
  Layout layout;
};

class RandomLayout : public testing::TestWithParam<unsigned> {};

TEST_P(RandomLayout, EveryPositionOfAValueHasOneOwner) {
  const Case c(GetParam());
  c.each_used([&](int s, int v, const ValueLayout& value) {
    ASSERT_EQ(static_cast<int>(value.owned.size()), c.stage(s).members());
    const Box whole = c.whole(v, {0, c.plan.micro_size()});
    std::int64_t covered = 0;
    for (std::size_t a = 0; a < value.owned.size(); ++a) {
      ASSERT_TRUE(whole.contains(value.owned[a])) << value.owned[a] << " of " << whole;
      covered += value.owned[a].volume();
      for (std::size_t b = 0; b < a; ++b)
        ASSERT_TRUE(intersect(value.owned[a], value.owned[b]).empty()) << value.owned[a] << value.owned[b];
    }
    ASSERT_EQ(covered, whole.volume()) << "value " << v << " in stage " << s;
  });
}

TEST_P(RandomLayout, BoxesLieInOneAnother) {
  const Case c(GetParam());
  c.each_used([&](int s, int v, const ValueLayout& value) {
    for (std::size_t m = 0; m < value.held.size(); ++m) {
      ASSERT_TRUE(value.frame[m].contains(value.held[m]));
      ASSERT_TRUE(c.whole(v, value.owned[m].batch()).contains(value.held[m])) << "what is held is inside the image";
      if (!c.made_in(s, v)) {
        ASSERT_TRUE(value.made[m].empty()) << "value " << v << " is not made in stage " << s;
        continue;
      }
      ASSERT_TRUE(value.made[m].contains(value.owned[m]));
      ASSERT_TRUE(value.held[m].contains(value.made[m]));
    }
  });
}

TEST_P(RandomLayout, EveryMemberHoldsWhatItsNodesLookAt) {
  const Case c(GetParam());
  for (int s = 0; s < static_cast<int>(c.plan.stages.size()); ++s)
    for (int n = std::max(1, c.stage(s).first_node); n < c.stage(s).end_node; ++n) {
      const Node& node = c.graph.node({n});
      const auto shapes = c.graph.input_shapes(node);
      for (std::size_t i = 0; i < node.inputs.size(); ++i) {
        const int v = node.inputs[i].id;
        const ValueLayout &in = c.layout.at(s, v), &out = c.layout.at(s, n);
        ASSERT_TRUE(in.used());
        for (std::size_t m = 0; m < out.made.size(); ++m) {
          if (node.op->reduces_positions()) {
            ASSERT_TRUE(in.held[m].contains(in.owned[m])) << "a sum takes what the member owns";
            continue;
          }
          if (out.made[m].empty()) continue;
          const Box need = node.op->input_box(out.made[m], i, shapes);
          ASSERT_TRUE(in.held[m].contains(intersect(need, c.whole(v, need.batch()))))
              << node.name << " needs " << need << " and holds " << in.held[m];
          const bool framed = node.op->pads_with_zeros() && c.stage(s).grid.tiles() > 1;
          ASSERT_TRUE(!framed || in.frame[m].contains(need)) << node.name << " finds its padding in the frame";
        }
      }
    }
}

TEST_P(RandomLayout, WhatIsHeldIsMadeHereOrTravels) {
  const Case c(GetParam());
  std::vector<Transfer> expected;
  for (int v = 1; v < static_cast<int>(c.graph.nodes().size()); ++v) {
    int from = 0;
    while (!c.inside(from, v)) ++from;
    for (int to = from; to < static_cast<int>(c.plan.stages.size()); ++to) {
      const ValueLayout& value = c.layout.at(to, v);
      bool travels = false;
      for (std::size_t m = 0; m < value.held.size(); ++m) travels = travels || !value.made[m].contains(value.held[m]);
      if (travels) expected.push_back({v, from, to});
    }
  }
  // A stage may use a value of which no member needs a pixel; nothing is asked of that.
  for (const Transfer& t : expected)
    EXPECT_NE(std::find(c.layout.transfers.begin(), c.layout.transfers.end(), t), c.layout.transfers.end()) << t;
  for (const Transfer& t : c.layout.transfers) {
    EXPECT_EQ(std::count(c.layout.transfers.begin(), c.layout.transfers.end(), t), 1) << t;
    const bool wanted = std::find(expected.begin(), expected.end(), t) != expected.end();
    EXPECT_TRUE(t.from != t.to || wanted) << t;
  }
}

TEST_P(RandomLayout, AnExchangeFindsEverythingItNeedsInEitherDirection) {
  const Case c(GetParam());
  for (const Transfer& t : c.layout.transfers)
    for (int d = 0; d < c.plan.directions(); ++d) {
      const auto direction = static_cast<Direction>(d);
      const Partition have = c.layout.have(c.plan, t, direction);
      const auto need = c.layout.need(c.plan, t, direction);
      ASSERT_EQ(static_cast<int>(have.boxes.size()), c.plan.ranks_per_replica());
      ASSERT_EQ(need.size(), have.boxes.size());
      for (const Box& wanted : need) {
        std::int64_t found = 0;
        for (const Box& owned : have.boxes) found += intersect(owned, wanted).volume();
        ASSERT_EQ(found, wanted.volume()) << t;
      }
      if (direction == Direction::up) {
        auto mirrored = c.layout.have(c.plan, t, Direction::down).boxes;
        std::reverse(mirrored.begin(), mirrored.end());
        ASSERT_EQ(have.boxes, mirrored);
      }
    }
}

TEST_P(RandomLayout, NothingIsExchangedOnOneTile) {
  Case c(GetParam());
  for (Stage& stage : c.plan.stages) {
    stage.grid = {};
    stage.ranks.resize(static_cast<std::size_t>(stage.batch_ways));
  }
  const Layout layout = make_layout(c.graph, c.plan);
  for (const Transfer& t : layout.transfers) EXPECT_LT(t.from, t.to) << t;
  for (const auto& stage : layout.stages)
    for (const ValueLayout& value : stage) EXPECT_FALSE(value.exchanged);
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomLayout, testing::Range(1u, 61u));

// ---- By hand ----

// conv1 - relu - conv2 | pool - head, and the pool's stage reads conv1 as well.
Graph small_graph() {
  Graph g;
  g.cell("front");
  const Value image = g.input({3, 8, 12});
  const Value one = g.conv(image, {.out = 4, .kernel = 3, .pad = 1}, "conv1");        // node 1
  const Value two = g.conv(g.relu(one), {.out = 4, .kernel = 3, .pad = 1}, "conv2");  // nodes 2, 3
  g.cell("rear");
  const Value sum = g.add(g.max_pool(two, {.kernel = 3, .stride = 1, .pad = 1}), one);  // nodes 4, 5
  g.cross_entropy(g.linear(g.flatten(g.global_avg_pool(sum)), {.out = 4}, "fc"));       // nodes 6 to 9
  return g;
}

Plan plan_of(const Graph& graph, const std::string& grid, std::int64_t fused = 0) {
  PlanOptions options{.batch_size = 2, .split_size = 2, .balance = "1,1", .grid = grid};
  if (fused > 0) options.fused_layers = fused;
  options.halo_d2 = fused > 0;
  options.spatial_size = std::count(grid.begin(), grid.end(), ',') + 1;
  return make_plan(graph, options);
}

TEST(Layout, TransfersAreMarginsAndWhatCrossesTheCut) {
  const Graph graph = small_graph();
  // Into one rank: the relu's margins, then conv1 and conv2 themselves.
  EXPECT_EQ(make_layout(graph, plan_of(graph, "1x2")).transfers,
            (std::vector<Transfer>{{1, 0, 1}, {2, 0, 0}, {3, 0, 1}}));
  // Into another grid: nothing else. What arrives, arrives with its margins.
  EXPECT_EQ(make_layout(graph, plan_of(graph, "1x2,2x1")).transfers,
            (std::vector<Transfer>{{1, 0, 1}, {2, 0, 0}, {3, 0, 1}}));
  // No tiles: no margins.
  EXPECT_EQ(make_layout(graph, plan_of(graph, "1x1")).transfers, (std::vector<Transfer>{{1, 0, 1}, {3, 0, 1}}));
  // Fused: the relu, which nobody else reads, is made with its margin, out of conv1's, which now travel in its place.
  EXPECT_EQ(make_layout(graph, plan_of(graph, "1x2", 1)).transfers,
            (std::vector<Transfer>{{1, 0, 0}, {1, 0, 1}, {3, 0, 1}}));
}

TEST(Layout, BoxesOfASmallGraph) {
  const Graph graph = small_graph();
  const Interval both{0, 2}, rows{0, 8};
  const Layout layout = make_layout(graph, plan_of(graph, "1x2,2x1"));
  const auto box = [&](Interval height, Interval width) { return image_box(both, height, width); };
  using Boxes = std::vector<Box>;

  const ValueLayout& relu = layout.at(0, 2);
  EXPECT_EQ(relu.owned, (Boxes{box(rows, {0, 6}), box(rows, {6, 12})}));
  EXPECT_EQ(relu.made, relu.owned);
  EXPECT_EQ(relu.held, (Boxes{box(rows, {0, 7}), box(rows, {5, 12})}));
  EXPECT_EQ(relu.frame, (Boxes{box({-1, 9}, {-1, 7}), box({-1, 9}, {5, 13})}));
  EXPECT_TRUE(relu.exchanged);

  // The stage reads its own part of the images, margins included: nothing travels for that.
  EXPECT_EQ(layout.at(0, 0).held, relu.held);
  EXPECT_FALSE(layout.at(0, 0).exchanged);

  // The pool looks over the cut between the rows; beyond the image it has its own padding.
  const ValueLayout& two = layout.at(1, 3);
  EXPECT_EQ(two.owned, (Boxes{box({0, 4}, {0, 12}), box({4, 8}, {0, 12})}));
  EXPECT_EQ(two.made, (Boxes{{}, {}}));
  EXPECT_EQ(two.held, (Boxes{box({0, 5}, {0, 12}), box({3, 8}, {0, 12})}));
  EXPECT_EQ(two.frame, two.held);
  EXPECT_EQ(layout.at(1, 1).held, two.owned);

  // The head's features belong to the upper left tile.
  EXPECT_EQ(layout.at(1, 6).owned, (Boxes{box({0, 1}, {0, 1}), image_box(both, {0, 0}, {0, 0})}));
}

TEST(Layout, FusedValuesAreMadeWithTheirMargins) {
  const Graph graph = small_graph();
  const Layout layout = make_layout(graph, plan_of(graph, "1x2", 1));
  const ValueLayout& relu = layout.at(0, 2);
  EXPECT_EQ(relu.made, relu.held);
  EXPECT_EQ(relu.made[0], image_box({0, 2}, {0, 8}, {0, 7}));
  EXPECT_EQ(layout.at(0, 1).made[0], image_box({0, 2}, {0, 8}, {0, 6}));
  EXPECT_EQ(layout.at(0, 1).held[0], image_box({0, 2}, {0, 8}, {0, 7}));
}

TEST(Layout, SharesOfAMicroAreCutAlongTheBatch) {
  const Graph graph = small_graph();
  const Plan plan = make_plan(
      graph, {.batch_size = 6, .split_size = 2, .balance = "1,1", .grid = "1x2", .spatial_size = 1, .local_dp = 3});
  const Layout layout = make_layout(graph, plan);
  for (std::int64_t way = 0; way < 3; ++way)
    EXPECT_EQ(layout.at(1, 3).held[static_cast<std::size_t>(way)], image_box({2 * way, 2 * way + 2}, {0, 8}, {0, 12}));
}

std::int64_t margin_exchanges(const Graph& graph, std::int64_t fused_layers) {
  PlanOptions options{.batch_size = 1, .grid = "2x2"};
  if (fused_layers > 0) options.fused_layers = fused_layers;
  options.halo_d2 = fused_layers > 0;
  return exchange_cost(make_layout(graph, make_plan(graph, options)), graph, 0).exchanges;
}

TEST(Layout, FourFusedBlocksExchangeAThirdAsOftenAtMost) {
  const Graph graph =
      builtin_models().build({.name = "resnet_v2", .image = {3, 128, 128}, .classes = 10, .depth = 110});
  const std::int64_t apart = margin_exchanges(graph, 0), fused = margin_exchanges(graph, 4);
  EXPECT_LE(3 * fused, apart) << fused << " fused, " << apart << " apart";
  EXPECT_GT(fused, 0);
  std::int64_t before = margin_exchanges(graph, 1);
  for (const std::int64_t layers : {2, 4, 8}) {
    const std::int64_t now = margin_exchanges(graph, layers);
    EXPECT_LT(now, before) << layers;
    before = now;
  }
}

TEST(Layout, CostCountsOneMessageAPeerThereAndBack) {
  const Graph graph = small_graph();
  const Layout layout = make_layout(graph, plan_of(graph, "1x2"));
  const ExchangeCost margins = exchange_cost(layout, graph, 0), join = exchange_cost(layout, graph, 1);
  EXPECT_EQ(margins.exchanges, 2);
  EXPECT_EQ(margins.messages, 4);
  EXPECT_EQ(margins.elements, 2 * 2 * (2 * 8) * 4);  // there and back, two tiles, a column of two samples, channels
  EXPECT_EQ(join.exchanges, 4);
  EXPECT_EQ(join.messages, 8);
  EXPECT_EQ(join.elements, 2 * 2 * (2 * 8 * 12) * 4);
}

// ---- Empty tiles ----

Graph halving_graph(int times) {
  Graph g;
  g.cell("all");
  Value x = g.input({3, 16, 32});
  for (int i = 0; i < times; ++i) x = g.conv(x, {.out = 4, .kernel = 3, .stride = 2, .pad = 1}, concat("conv", i));
  g.cross_entropy(g.linear(g.flatten(g.global_avg_pool(x)), {.out = 4}, "fc"));
  return g;
}

TEST(FindEmptyTile, NamesTheFirstNodeThatLeavesATileWithoutPixels) {
  const Graph graph = halving_graph(3);  // 8x16, 4x8, 2x4
  const int end = static_cast<int>(graph.nodes().size());
  EXPECT_EQ(find_empty_tile(graph, {2, 4}, 0, end), std::nullopt);
  EXPECT_EQ(find_empty_tile(graph, {3, 1}, 0, end), 3);
  EXPECT_EQ(find_empty_tile(graph, {1, 5}, 0, end), 3);
  EXPECT_EQ(find_empty_tile(graph, {5, 1}, 0, end), 2);
  EXPECT_EQ(find_empty_tile(graph, {9, 1}, 0, end), 1);
  EXPECT_EQ(find_empty_tile(graph, {17, 1}, 0, end), 0);
}

TEST(FindEmptyTile, LooksAtTheNodesOfTheStageOnly) {
  const Graph graph = halving_graph(3);
  EXPECT_EQ(find_empty_tile(graph, {3, 1}, 0, 3), std::nullopt);
  EXPECT_EQ(find_empty_tile(graph, {5, 1}, 3, static_cast<int>(graph.nodes().size())), 3);
}

// Pooling over the whole image leaves one position a sample, and that is no fault of the grid.
TEST(FindEmptyTile, DoesNotMindTheHead) {
  const Graph graph = halving_graph(1);
  EXPECT_EQ(find_empty_tile(graph, {8, 16}, 0, static_cast<int>(graph.nodes().size())), std::nullopt);
}

TEST(FindEmptyTile, OneTileIsNeverEmpty) {
  const Graph graph = halving_graph(4);
  EXPECT_EQ(find_empty_tile(graph, {1, 1}, 0, static_cast<int>(graph.nodes().size())), std::nullopt);
}

}  // namespace
}  // namespace tessera
