// Flags in, a plan out: what they say together, and what is wrong with them.
#include <algorithm>
#include <charconv>
#include <numeric>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/plan/balance.h"
#include "tessera/plan/layout.h"
#include "tessera/plan/plan.h"

namespace tessera {
namespace {

// Of a whole job. More is a typing error, and would take minutes to plan.
constexpr std::int64_t most_ranks = 65'536;

NormScope parse_norm_scope(const std::string& name) {
  for (const auto scope : {NormScope::local, NormScope::micro, NormScope::global})
    if (name == to_string(scope)) return scope;
  throw UsageError(concat("--batch-norm ", name, " is not one of local, micro, global"));
}

GradSync parse_grad_sync(const std::string& name) {
  for (const auto sync : {GradSync::flat, GradSync::hierarchical})
    if (name == to_string(sync)) return sync;
  throw UsageError(concat("--grad-sync ", name, " is not one of flat, hierarchical"));
}

std::vector<std::string> split_list(const std::string& text) {
  std::vector<std::string> parts(1);
  for (const char c : text)
    if (c == ',')
      parts.emplace_back();
    else
      parts.back() += c;
  return parts;
}

std::optional<std::int64_t> parse_count(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1 || value > 1'000'000) return std::nullopt;
  return value;
}

// As near to square as the number allows, never more rows than columns: 6 is 2x3, 5 is 1x5.
Grid square_grid(std::int64_t tiles) {
  std::int64_t rows = 1;
  for (std::int64_t r = 1; r * r <= tiles; ++r)
    if (tiles % r == 0) rows = r;
  return {rows, tiles / rows};
}

std::vector<Grid> parse_grids(const char* flag, const std::string& list) {
  std::vector<Grid> grids;
  for (const auto& text : split_list(list)) {
    const auto cross = text.find('x');
    const auto rows = parse_count(std::string_view(text).substr(0, cross));
    const auto columns = cross == std::string::npos ? std::nullopt : parse_count(text.substr(cross + 1));
    require(rows && columns, flag, " ", list, " is not rows x columns like 3x5, or a list of these");
    grids.push_back({*rows, *columns});
  }
  return grids;
}

}  // namespace

std::vector<Grid> requested_grids(const PlanOptions& o) {
  std::vector<Grid> grids;
  if (o.grid) {
    require(!o.num_spatial_parts && !o.slice_method,
            "--grid says both how many tiles and how they lie; leave out --num-spatial-parts and --slice-method");
    grids = parse_grids("--grid", *o.grid);
  } else if (o.num_spatial_parts) {
    const std::string method = o.slice_method.value_or("square");
    require(method == "square" || method == "vertical" || method == "horizontal", "--slice-method ", method,
            " is not one of square, vertical, horizontal");
    for (const auto& text : split_list(*o.num_spatial_parts)) {
      const auto tiles = parse_count(text);
      require(tiles.has_value(), "--num-spatial-parts ", *o.num_spatial_parts,
              " is not a number of tiles like 4, or a list like 4,2");
      grids.push_back(method == "vertical"     ? Grid{1, *tiles}
                      : method == "horizontal" ? Grid{*tiles, 1}
                                               : square_grid(*tiles));
    }
  } else {
    require(!o.slice_method, "--slice-method says how tiles lie; say how many with --num-spatial-parts");
    require(o.spatial_size.value_or(0) == 0,
            "--spatial-size asks for spatial stages; say into how many tiles with --num-spatial-parts or --grid");
  }
  return grids;
}

namespace {

std::int64_t stage_count(const PlanOptions& o) {
  return o.split_size.value_or(o.num_hp && !o.dp_only ? 2 : o.balance ? split_list(*o.balance).size() : 1);
}

// Bundles are the seeds' way of summing by each node's master.
std::string requested_grad_sync(const PlanOptions& o) {
  return o.grad_sync.value_or(o.num_hp ? "hierarchical" : "flat");
}

ScheduleKind requested_schedule(const PlanOptions& o) {
  if (o.schedule) return parse_schedule(*o.schedule);
  return o.times ? ScheduleKind::gems_master : ScheduleKind::one_f_one_b;
}

// Grid and batch ways of every stage; ranks follow from these.
std::vector<Stage> stages_without_nodes(const PlanOptions& o) {
  const auto grids = requested_grids(o);
  const std::int64_t count = stage_count(o);
  const std::int64_t spatial = o.spatial_size.value_or(static_cast<std::int64_t>(grids.size()));
  require(spatial <= count, "--spatial-size ", spatial, " is more than the ", count, count == 1 ? " stage" : " stages",
          " of --split-size ", count, "; use --split-size ", spatial, " or more");
  require(grids.size() <= 1 || static_cast<std::int64_t>(grids.size()) == spatial,
          o.grid ? "--grid" : "--num-spatial-parts", " lists ", grids.size(), " stages but --spatial-size is ",
          spatial);
  const std::int64_t ways = o.local_dp.value_or(1);
  require(
      ways == 1 || (spatial > 0 && spatial < count), "--local-DP ", ways,
      " shares the batch in the stages behind the spatial ones, but there is no such stage; use --num-spatial-parts",
      " with a --split-size above --spatial-size, or --replicas for data parallelism");
  const auto turns = o.turns ? parse_grids("--turns", *o.turns) : std::vector<Grid>{{}};
  require(turns.size() == 1 || static_cast<std::int64_t>(turns.size()) == count, "--turns lists ", turns.size(),
          " stages, and there are ", count, "; give one, or one per stage");
  std::vector<Stage> stages(static_cast<std::size_t>(count));
  int rank = 0;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    Stage& stage = stages[s];
    if (static_cast<std::int64_t>(s) < spatial)
      stage.grid = grids[grids.size() == 1 ? 0 : s];
    else
      stage.batch_ways = ways;
    require(rank + stage.grid.tiles() * stage.batch_ways <= most_ranks, "stage ", s, " on a grid of ", stage.grid,
            " takes the plan beyond the ", most_ranks, " ranks that are possible; use a smaller ",
            o.grid ? "--grid" : "--num-spatial-parts", ", or fewer stages");
    for (std::int64_t r = 0; r < stage.grid.tiles() * stage.batch_ways; ++r) stage.ranks.push_back(rank++);
    stage.turns = turns[turns.size() == 1 ? 0 : s];
    stage.grid = {stage.grid.rows * stage.turns.rows, stage.grid.columns * stage.turns.columns};
    require(stage.grid.tiles() * stage.batch_ways <= most_ranks, "--turns ", stage.turns, " makes ", stage.grid.tiles(),
            " tiles of stage ", s, ", more than the ", most_ranks, " that are possible");
  }
  return stages;
}

void check_numbers(const PlanOptions& o, Problems& problems) {
  const auto at_least_one = [&](const std::optional<std::int64_t>& value, const char* flag) {
    problems.check(value.value_or(1) >= 1, flag, " ", value.value_or(1), " must be at least 1");
    problems.check(value.value_or(1) <= most_ranks, flag, " ", value.value_or(1), " is more than the ", most_ranks,
                   " that are possible");
  };
  problems.check(o.batch_size > 0, "--batch-size ", o.batch_size, " must be at least 1");
  at_least_one(o.parts, "--parts");
  at_least_one(o.split_size, "--split-size");
  at_least_one(o.local_dp, "--local-DP");
  at_least_one(o.times, "--times");
  at_least_one(o.replicas, "--replicas");
  at_least_one(o.num_hp, "--num-hp");
  at_least_one(o.ranks_per_node, "--ranks-per-node");
  at_least_one(o.fused_layers, "--fused-layers");
  problems.check(o.spatial_size.value_or(0) >= 0, "--spatial-size ", o.spatial_size.value_or(0),
                 " must not be negative");
  problems.check(o.balance_by == "time" || o.balance_by == "memory", "--balance-by ", o.balance_by,
                 " is not one of time, memory");
}

void check_combinations(const PlanOptions& o, Problems& problems) {
  if (o.batch_size > 0 && o.parts > 0)
    problems.check(o.batch_size % o.parts == 0, "--batch-size ", o.batch_size, " is not divisible by --parts ", o.parts,
                   "; use --batch-size ", (o.batch_size / o.parts + 1) * o.parts, " or another --parts");
  if (o.batch_size > 0 && o.parts > 0 && o.batch_size % o.parts == 0 && o.local_dp.value_or(1) >= 1) {
    const std::int64_t micro = o.batch_size / o.parts, ways = o.local_dp.value_or(1);
    problems.check(micro % ways == 0, "--local-DP ", ways, " does not divide the ", micro,
                   " samples of a micro (--batch-size ", o.batch_size, " / --parts ", o.parts, "); use --batch-size ",
                   (micro / ways + 1) * ways * o.parts, " or another --local-DP");
  }
  problems.check(!o.fused_layers || o.halo_d2, "--fused-layers is for --halo-D2; give that too");
  problems.check(!o.halo_d2 || o.num_spatial_parts || o.grid || o.turns,
                 "--halo-D2 is about the margins of tiles; ask for these with --num-spatial-parts, --grid or --turns");
  problems.check(!o.dp_only || o.num_hp, "--DP-ONLY needs the number of workers on a node: --num-hp");
  problems.check(!o.dp_only || stage_count(o) == 1, "--DP-ONLY keeps each network whole; leave out --split-size");
  if (o.num_hp && o.replicas)
    problems.check(*o.replicas % *o.num_hp == 0, "--replicas ", *o.replicas, " is not a multiple of --num-hp ",
                   *o.num_hp, " (bundles on a node)");
  problems.absorb([&] {
    const ScheduleKind kind = requested_schedule(o);
    problems.check(!o.times || kind == ScheduleKind::gems_master, "--times is for --schedule gems-master, not ",
                   to_string(kind));
    problems.check(kind < ScheduleKind::gems_mast || stage_count(o) > 1, "--schedule ", to_string(kind),
                   " runs two directions through several stages; use --split-size 2 or more");
  });
}

// The largest grid, no larger along any axis than the wanted one, that leaves no tile empty.
Grid largest_grid(const Graph& graph, const Stage& stage) {
  Grid grid = stage.grid;
  const auto works = [&](const Grid& g) { return !find_empty_tile(graph, g, stage.first_node, stage.end_node); };
  while (grid.rows > 1 && !works({grid.rows, 1})) --grid.rows;
  while (grid.columns > 1 && !works({1, grid.columns})) --grid.columns;
  return grid;
}

void check_tiles(const Graph& graph, const Plan& plan, Problems& problems) {
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const Stage& stage = plan.stages[s];
    if (const auto node = find_empty_tile(graph, stage.grid, stage.first_node, stage.end_node))
      problems.add("stage ", s, " on a grid of ", stage.grid, " leaves a tile empty at node '",
                   graph.nodes()[static_cast<std::size_t>(*node)].name, "' (",
                   graph.nodes()[static_cast<std::size_t>(*node)].shape, "); the largest grid that works is ",
                   largest_grid(graph, stage), ": change ", stage.turns.tiles() > 1 ? "--turns, " : "",
                   "--num-spatial-parts or --grid, or use a larger --image-size");
  }
}

}  // namespace

void check_plan_numbers(const PlanOptions& o) {
  Problems problems;
  check_numbers(o, problems);
  problems.throw_if_any();
}

void check_plan_options(const PlanOptions& o) {
  check_plan_numbers(o);
  Problems problems;
  check_combinations(o, problems);
  problems.absorb([&] { stages_without_nodes(o); });
  problems.absorb([&] { parse_norm_scope(o.batch_norm); });
  problems.absorb([&] { parse_grad_sync(requested_grad_sync(o)); });
  problems.throw_if_any();
}

Plan make_plan(const Graph& graph, const PlanOptions& o, std::optional<int> ranks_started) {
  check_plan_options(o);
  Plan plan;
  plan.batch_size = o.batch_size;
  plan.parts = o.parts;
  plan.schedule = requested_schedule(o);
  plan.times = o.times.value_or(1);
  plan.batch_norm = parse_norm_scope(o.batch_norm);
  plan.grad_sync = parse_grad_sync(requested_grad_sync(o));
  plan.fused_layers = o.halo_d2 ? o.fused_layers.value_or(1) : 0;
  plan.stages = stages_without_nodes(o);

  const int stages = static_cast<int>(plan.stages.size());
  std::vector<std::int64_t> members;
  for (const auto& stage : plan.stages) members.push_back(static_cast<std::int64_t>(stage.ranks.size()));
  const auto by = o.balance_by == "memory" ? BalanceBy::memory : BalanceBy::time;
  const auto cells = o.balance ? parse_balance(*o.balance, stages, static_cast<int>(graph.cells().size()))
                               : balance_cells(graph, stages, by, members);
  for (int s = 0, cell = 0; s < stages; ++s) {
    Stage& stage = plan.stages[static_cast<std::size_t>(s)];
    const auto first = [&](int c) {
      return c < static_cast<int>(graph.cells().size()) ? graph.cells()[static_cast<std::size_t>(c)].first_node
                                                        : static_cast<int>(graph.nodes().size());
    };
    stage.first_node = cell == 0 ? 0 : first(cell);
    cell += cells[static_cast<std::size_t>(s)];
    stage.end_node = first(cell);
  }

  Problems problems;
  check_tiles(graph, plan, problems);
  const int one = plan.ranks_per_replica();
  plan.replicas = o.replicas.value_or(ranks_started && o.num_hp && *ranks_started % one == 0 ? *ranks_started / one
                                                                                             : o.num_hp.value_or(1));
  if (o.num_hp)
    problems.check(plan.replicas % *o.num_hp == 0, plan.replicas, " bundles do not fill nodes of --num-hp ", *o.num_hp,
                   "; start a multiple of ", *o.num_hp * one, " ranks");
  problems.check(plan.replicas * one <= most_ranks, "--replicas ", plan.replicas, " of ", one,
                 one == 1 ? " rank" : " ranks", " each are more than the ", most_ranks, " ranks that are possible");
  plan.ranks_per_node = o.ranks_per_node.value_or(o.num_hp ? *o.num_hp * one : 0);
  if (ranks_started)
    problems.check(*ranks_started == plan.ranks(), "there are ", *ranks_started,
                   *ranks_started == 1 ? " rank" : " ranks", ", but this plan needs ", plan.ranks(),
                   "; use mpirun -np ", plan.ranks());
  problems.throw_if_any();
  return plan;
}

}  // namespace tessera
