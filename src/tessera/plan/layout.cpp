#include "tessera/plan/layout.h"

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera {
namespace {

// The tiles of every value up to `end` under a grid: the image is cut evenly, and the region rules carry the cuts
// through the network. So values of one resolution have the same tiles, whichever stage makes them.
// tiles[value][tile], batch [0, 1).
std::vector<std::vector<Box>> tiles_of(const Graph& graph, std::vector<Box> of_image, int end) {
  std::vector<std::vector<Box>> tiles{std::move(of_image)};
  for (int n = 1; n < end; ++n) {
    const Node& node = graph.nodes()[static_cast<std::size_t>(n)];
    const auto shapes = graph.input_shapes(node);
    std::vector<Box> boxes;
    for (const Box& in : tiles[static_cast<std::size_t>(node.inputs[0].id)])
      boxes.push_back(node.op->owned_output(in, shapes));
    tiles.push_back(std::move(boxes));
  }
  return tiles;
}

std::vector<Box> image_tiles(const Graph& graph, const Grid& grid) {
  return grid_partition(graph.nodes()[0].shape.box({0, 1}), grid).boxes;
}

// Those of the rows and columns that are asked for.
std::vector<Box> image_tiles(const Graph& graph, const Grid& grid, const std::vector<std::int64_t>& rows,
                             const std::vector<std::int64_t>& columns) {
  const Box whole = graph.nodes()[0].shape.box({0, 1});
  const auto heights = split_evenly(whole.height(), grid.rows), widths = split_evenly(whole.width(), grid.columns);
  std::vector<Box> tiles;
  for (const std::int64_t row : rows)
    for (const std::int64_t column : columns) {
      Box box = whole;
      box[Axis::height] = heights[static_cast<std::size_t>(row)];
      box[Axis::width] = widths[static_cast<std::size_t>(column)];
      tiles.push_back(box);
    }
  return tiles;
}

// Both borders with what is next to them, and three in the middle: every kind there is, with its neighbours.
std::vector<std::int64_t> sample_of(std::int64_t count) {
  std::vector<std::int64_t> out;
  constexpr std::int64_t enough = 7;
  for (std::int64_t i = 0; i < count; ++i)
    if (count <= enough || i < 2 || i + 2 >= count || std::abs(i - count / 2) <= 1) out.push_back(i);
  return out;
}

// Tiles times shares of a micro's samples.
std::vector<Box> member_boxes(const std::vector<Box>& tiles, const std::vector<Interval>& shares) {
  std::vector<Box> boxes;
  for (const Interval& share : shares)
    for (Box box : tiles) {
      box[Axis::batch] = share;
      boxes.push_back(box);
    }
  return boxes;
}

class StageBuilder {
 public:
  StageBuilder(const Graph& graph, const Plan& plan, int stage)
      : StageBuilder(graph, plan, stage, image_tiles(graph, plan.stages[static_cast<std::size_t>(stage)].grid),
                     split_evenly({0, plan.micro_size()}, plan.stages[static_cast<std::size_t>(stage)].batch_ways)) {}

  // `tiles` of the image and `shares` of a micro that the members have.
  StageBuilder(const Graph& graph, const Plan& plan, int stage, std::vector<Box> tiles, std::vector<Interval> shares)
      : graph_(graph),
        stage_(plan.stages[static_cast<std::size_t>(stage)]),
        consumers_(graph.consumers()),
        fused_layers_(plan.fused_layers),
        shares_(std::move(shares)),
        tiles_(tiles_of(graph, std::move(tiles), stage_.end_node)),
        values_(graph.nodes().size()) {}

  std::vector<ValueLayout> run() {
    // From the end to the front: what a value must hold follows from its consumers.
    for (int v = stage_.end_node - 1; v >= 0; --v) {
      const bool here = v >= stage_.first_node;
      if (!here && !read_here(v)) continue;
      place(v, here && v != 0);
    }
    return std::move(values_);
  }

 private:
  bool read_here(int v) const {
    const auto& readers = consumers_[static_cast<std::size_t>(v)];
    return std::any_of(readers.begin(), readers.end(), [&](int n) { return inside(n); });
  }
  bool inside(int n) const { return stage_.first_node <= n && n < stage_.end_node; }

  // Nodes of one group share the margins that are exchanged before it.
  int group_of(int n) const {
    if (fused_layers_ == 0) return n;
    const auto cell = [&](int node) { return graph_.nodes()[static_cast<std::size_t>(node)].cell; };
    return (cell(n) - cell(stage_.first_node)) / static_cast<int>(fused_layers_);
  }
  // A value that only its own group reads is made as large as it is needed.
  bool inner(int v) const {
    const auto& readers = consumers_[static_cast<std::size_t>(v)];
    return std::all_of(readers.begin(), readers.end(), [&](int n) { return inside(n) && group_of(n) == group_of(v); });
  }

  void place(int v, bool made_here) {
    ValueLayout& layout = values_[static_cast<std::size_t>(v)];
    const Shape& shape = graph_.nodes()[static_cast<std::size_t>(v)].shape;
    layout.owned = member_boxes(tiles_[static_cast<std::size_t>(v)], shares_);
    const std::size_t members = layout.owned.size();
    std::vector<Box> needed(members), padded(members);
    for (int n : consumers_[static_cast<std::size_t>(v)])
      if (inside(n)) add_needs(n, v, layout.owned, needed, padded);
    for (std::size_t m = 0; m < members; ++m) {
      const Box whole = shape.box(layout.owned[m].batch());
      const Box& owned = layout.owned[m];
      layout.held.push_back(hull(intersect(needed[m], whole), made_here ? owned : Box{}));
      layout.made.push_back(made_here ? owned : Box{});
      // One tile is padded by the convolution itself.
      layout.frame.push_back(stage_.grid.tiles() > 1 ? hull(layout.held[m], padded[m]) : layout.held[m]);
      layout.exchanged = layout.exchanged || (made_here && !owned.contains(layout.held[m]));
    }
    if (made_here && inner(v)) {
      layout.made = layout.held;
      layout.exchanged = false;
    }
  }

  // What node n needs of value v on every member.
  void add_needs(int n, int v, const std::vector<Box>& owned, std::vector<Box>& needed,
                 std::vector<Box>& padded) const {
    const Node& node = graph_.nodes()[static_cast<std::size_t>(n)];
    const auto shapes = graph_.input_shapes(node);
    const ValueLayout& out = values_[static_cast<std::size_t>(n)];
    for (std::size_t i = 0; i < node.inputs.size(); ++i) {
      if (node.inputs[i].id != v) continue;
      for (std::size_t m = 0; m < owned.size(); ++m) {
        if (node.op->reduces_positions()) {
          // Every member adds up its own tile; no pixel travels.
          needed[m] = hull(needed[m], owned[m]);
        } else if (!out.made[m].empty()) {
          const Box need = node.op->input_box(out.made[m], i, shapes);
          needed[m] = hull(needed[m], need);
          if (node.op->pads_with_zeros()) padded[m] = hull(padded[m], need);
        }
      }
    }
  }

  const Graph& graph_;
  const Stage& stage_;
  const std::vector<std::vector<int>> consumers_;
  const std::int64_t fused_layers_;
  const std::vector<Interval> shares_;
  const std::vector<std::vector<Box>> tiles_;
  std::vector<ValueLayout> values_;
};

std::vector<Box> by_place(const Plan& plan, int stage, Direction direction, const std::vector<Box>& boxes) {
  std::vector<Box> out(static_cast<std::size_t>(plan.places()));
  for (int m = 0; m < static_cast<int>(boxes.size()); ++m)
    out[static_cast<std::size_t>(plan.number_of(direction, stage, m))] = boxes[static_cast<std::size_t>(m)];
  return out;
}

int stage_of(const Plan& plan, int node) {
  for (std::size_t s = 0; s < plan.stages.size(); ++s)
    if (plan.stages[s].first_node <= node && node < plan.stages[s].end_node) return static_cast<int>(s);
  ensure(false, "node ", node, " is in no stage");
  return -1;
}

}  // namespace

Partition Layout::have(const Plan& plan, const Transfer& t, Direction direction) const {
  return {by_place(plan, t.from, direction, at(t.from, t.value).owned)};
}

std::vector<Box> Layout::need(const Plan& plan, const Transfer& t, Direction direction) const {
  return by_place(plan, t.to, direction, at(t.to, t.value).held);
}

Program stage_program(const Graph& graph, const Plan& plan, const Layout& layout, int stage, Recompute recompute) {
  const Stage& s = plan.stages[static_cast<std::size_t>(stage)];
  return Program(graph, {s.first_node, s.end_node}, recompute,
                 [&](int a, int b) { return layout.at(stage, a).made == layout.at(stage, b).made; });
}

namespace {

Layout with_transfers(const Graph& graph, const Plan& plan, Layout layout) {
  const int stages = static_cast<int>(plan.stages.size());
  for (int v = 1; v < static_cast<int>(graph.nodes().size()); ++v) {  // every stage reads the images for itself
    const int from = stage_of(plan, v);
    for (int to = from; to < stages; ++to) {
      const ValueLayout& value = layout.at(to, v);
      if (to == from ? value.exchanged : value.used()) layout.transfers.push_back({v, from, to});
    }
  }
  return layout;
}

}  // namespace

Layout make_layout(const Graph& graph, const Plan& plan) {
  Layout layout;
  for (int s = 0; s < static_cast<int>(plan.stages.size()); ++s)
    layout.stages.push_back(StageBuilder(graph, plan, s).run());
  return with_transfers(graph, plan, std::move(layout));
}

Sample make_sample(const Graph& graph, const Plan& plan) {
  // With two directions, whose stages meet on a rank is a question of how many ranks all of them have.
  constexpr int few = 128;
  const bool all = plan.bidirectional() && plan.ranks_per_replica() <= few;
  if (plan.turns() || all) return {plan, make_layout(graph, plan)};
  Sample sample{plan, {}};
  int rank = 0;
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    Stage& stage = sample.plan.stages[s];
    const auto rows = sample_of(stage.grid.rows), columns = sample_of(stage.grid.columns);
    auto shares = split_evenly({0, plan.micro_size()}, stage.batch_ways);
    shares.resize(std::min<std::size_t>(shares.size(), 2));  // the first are the largest
    sample.layout.stages.push_back(
        StageBuilder(graph, plan, static_cast<int>(s), image_tiles(graph, stage.grid, rows, columns), shares).run());
    stage.grid = {static_cast<std::int64_t>(rows.size()), static_cast<std::int64_t>(columns.size())};
    stage.batch_ways = static_cast<std::int64_t>(shares.size());
    stage.ranks.clear();
    for (int m = 0; m < stage.members(); ++m) stage.ranks.push_back(rank++);
  }
  sample.layout = with_transfers(graph, sample.plan, std::move(sample.layout));
  return sample;
}

std::optional<int> find_empty_tile(const Graph& graph, const Grid& grid, int first, int end) {
  if (grid.tiles() == 1) return std::nullopt;
  if (grid.rows > 1 && grid.columns > 1) {
    // Rows and columns are cut independently of each other, so rows + columns tiles tell, not rows * columns.
    const auto in_rows = find_empty_tile(graph, {grid.rows, 1}, first, end);
    const auto in_columns = find_empty_tile(graph, {1, grid.columns}, first, end);
    return in_rows && in_columns ? std::min(in_rows, in_columns) : in_rows ? in_rows : in_columns;
  }
  const auto tiles = tiles_of(graph, image_tiles(graph, grid), end);
  std::vector<bool> out_of_plane(tiles.size());
  for (int n = 0; n < end; ++n) {
    const Node& node = graph.nodes()[static_cast<std::size_t>(n)];
    const auto i = static_cast<std::size_t>(n);
    if (node.op) {
      const auto shapes = graph.input_shapes(node);
      // An operation whose one output looks at the whole image.
      const Shape& in = shapes[0];
      const bool leaves = node.shape.positions() == 1 && in.positions() > 1 &&
                          node.op->input_box(node.shape.box({0, 1}), 0, shapes) == in.box({0, 1});
      out_of_plane[i] = leaves || out_of_plane[static_cast<std::size_t>(node.inputs[0].id)];
    }
    const bool empty = std::any_of(tiles[i].begin(), tiles[i].end(), [](const Box& b) { return b.empty(); });
    if (n >= first && empty && !out_of_plane[i]) return n;
  }
  return std::nullopt;
}

ExchangeCost exchange_cost(const Layout& layout, const Graph& graph, int stage) {
  ExchangeCost cost;
  for (const Transfer& t : layout.transfers) {
    if (t.to != stage) continue;
    const auto& have = layout.at(t.from, t.value).owned;
    const auto& need = layout.at(t.to, t.value).held;
    cost.exchanges += 2;
    for (std::size_t a = 0; a < have.size(); ++a)
      for (std::size_t b = 0; b < need.size(); ++b) {
        if (t.from == t.to && a == b) continue;
        const std::int64_t volume = intersect(have[a], need[b]).volume();
        cost.messages += volume > 0 ? 2 : 0;
        cost.elements += 2 * volume * graph.shape({t.value}).channels;
      }
  }
  return cost;
}

}  // namespace tessera
