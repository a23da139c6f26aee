#include "tessera/plan/plan.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <numeric>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/plan/balance.h"
#include "tessera/plan/layout.h"
#include "tessera/program/program.h"

namespace tessera {
namespace {

constexpr std::array<std::pair<ScheduleKind, std::string_view>, 6> schedule_names{
    {{ScheduleKind::gpipe, "gpipe"},
     {ScheduleKind::one_f_one_b, "1f1b"},
     {ScheduleKind::zero_bubble, "zero-bubble"},
     {ScheduleKind::gems_mast, "gems-mast"},
     {ScheduleKind::gems_master, "gems-master"},
     {ScheduleKind::chimera, "chimera"}}};

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

}  // namespace

namespace {

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

std::string_view to_string(ScheduleKind kind) {
  for (const auto& [k, name] : schedule_names)
    if (k == kind) return name;
  return "?";
}

ScheduleKind parse_schedule(const std::string& name) {
  std::vector<std::string> names;
  for (const auto& [kind, known] : schedule_names) {
    if (name == known) return kind;
    names.emplace_back(known);
  }
  throw UsageError(concat("--schedule ", name, " is not one of ", join(names, ", ")));
}

std::string_view to_string(NormScope scope) {
  return scope == NormScope::local ? "local" : scope == NormScope::micro ? "micro" : "global";
}

std::string_view to_string(GradSync sync) { return sync == GradSync::flat ? "flat" : "hierarchical"; }

std::int64_t Plan::micros(Direction direction) const {
  const bool down = direction == Direction::down;
  switch (schedule) {
    case ScheduleKind::gems_mast:
      return parts;
    case ScheduleKind::gems_master:
      return times * parts;
    case ScheduleKind::chimera:
      return down ? (parts + 1) / 2 : parts / 2;
    default:
      return down ? parts : 0;
  }
}

std::int64_t Plan::first_sample(std::int64_t replica, Direction direction, std::int64_t micro) const {
  const std::int64_t index = (direction == Direction::up ? micros(Direction::down) : 0) + micro;
  // Micros that are normalised together lie together.
  const std::int64_t place = batch_norm == NormScope::global ? index * replicas + replica : replica * micros() + index;
  return place * micro_size();
}

int Stage::holder(int member) const {
  const std::int64_t way = member / grid.tiles(), tile = member % grid.tiles();
  const std::int64_t row = tile / grid.columns / turns.rows, column = tile % grid.columns / turns.columns;
  const std::int64_t columns = grid.columns / turns.columns, rows = grid.rows / turns.rows;
  return static_cast<int>((way * rows + row) * columns + column);
}

int Plan::places() const {
  int count = 0;
  for (const auto& stage : stages) count += stage.members();
  return count;
}

int Plan::number_of(Direction direction, int stage, int member) const {
  int number = member;
  for (int s = 0; s < stage; ++s) number += stages[static_cast<std::size_t>(s)].members();
  return direction == Direction::down ? number : places() - 1 - number;
}

int Plan::ranks_per_replica() const {
  int count = 0;
  for (const auto& stage : stages) count += static_cast<int>(stage.ranks.size());
  return count;
}

int Plan::rank_of(Direction direction, int stage, int member) const {
  const Stage& s = stages[static_cast<std::size_t>(stage)];
  const int rank = s.ranks[static_cast<std::size_t>(s.holder(member))];
  return direction == Direction::down ? rank : ranks_per_replica() - 1 - rank;
}

std::vector<int> Plan::ranks_of(Direction direction, int stage) const {
  auto ranks = stages[static_cast<std::size_t>(stage)].ranks;
  if (direction == Direction::up)
    for (int& rank : ranks) rank = ranks_per_replica() - 1 - rank;
  return ranks;
}

std::vector<Plan::Place> Plan::places_of(int rank) const {
  std::vector<Place> places;
  for (int d = 0; d < directions(); ++d) {
    const auto direction = static_cast<Direction>(d);
    const int down = direction == Direction::down ? rank : ranks_per_replica() - 1 - rank;
    for (int s = 0; s < static_cast<int>(stages.size()); ++s) {
      const Stage& stage = stages[static_cast<std::size_t>(s)];
      if (down < stage.ranks.front() || down > stage.ranks.back()) continue;
      for (int m = 0; m < stage.members(); ++m)
        if (rank_of(direction, s, m) == rank) places.push_back({direction, s, m});
    }
  }
  return places;
}

std::vector<Plan::Place> Plan::first_places_of(int rank) const {
  auto places = places_of(rank);
  const auto same = [](const Place& a, const Place& b) { return a.direction == b.direction; };
  places.erase(std::unique(places.begin(), places.end(), same), places.end());
  return places;
}

int Plan::ranks_at_work_beside(int rank) const {
  const int one = ranks_per_replica(), node = ranks_per_node > 0 ? static_cast<int>(ranks_per_node) : ranks();
  const int begin = rank / node * node, end = std::min(ranks(), begin + node);
  if (micros() > 1) return end - begin;
  const auto mine =
      std::find_if(stages.begin(), stages.end(), [&](const Stage& s) { return rank % one <= s.ranks.back(); });
  // Ranks before the n-th that are in the stage, of all replicas.
  const auto in_stage = [&](int n) {
    const int first = mine->ranks.front(), members = static_cast<int>(mine->ranks.size());
    return n / one * members + std::clamp(n % one - first, 0, members);
  };
  return in_stage(end) - in_stage(begin);
}

Interval Plan::samples_of(const Place& place) const {
  const Stage& stage = stages[static_cast<std::size_t>(place.stage)];
  const auto way = static_cast<std::size_t>(place.member / stage.grid.tiles());
  return split_evenly({0, micro_size()}, stage.batch_ways)[way];
}

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

Plan sequential_plan(const Graph& graph, const Plan& plan) {
  Plan out;
  out.batch_size = plan.global_batch();
  out.parts = plan.global_micros();
  out.stages = {{.first_node = 0, .end_node = static_cast<int>(graph.nodes().size()), .grid = {}, .ranks = {0}}};
  return out;
}

std::string plan_table(const Plan& plan, const Graph& graph, int element_bytes) {
  const Layout layout = make_layout(graph, plan);
  Table table({"stage", "grid", "ways", "ranks", "cells", "nodes", "parameters", "GFLOP/rank", "kept, one micro",
               "exchanges", "messages", "exchanged"});
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const Stage& stage = plan.stages[s];
    Cost cost;
    std::int64_t parameters = 0;
    for (int n = stage.first_node; n < stage.end_node; ++n) {
      const Node& node = graph.nodes()[static_cast<std::size_t>(n)];
      cost += graph.cost(node, plan.micro_size());
      for (const auto& spec : node.parameters) parameters += spec.trainable ? spec.elements() : 0;
    }
    const double kept = kept_elements(graph, Program(graph, {stage.first_node, stage.end_node}, Recompute::norm)) *
                        static_cast<double>(plan.micro_size());
    const auto cell_of = [&](int n) { return graph.nodes()[static_cast<std::size_t>(n)].cell; };
    const auto members = static_cast<double>(stage.ranks.size());
    const auto micros = static_cast<double>(plan.micros());
    const ExchangeCost moved = exchange_cost(layout, graph, static_cast<int>(s));
    char gflop[32];
    std::snprintf(gflop, sizeof gflop, "%.2f", cost.flops() * micros / members / 1e9);
    const std::string ranks = stage.ranks.size() == 1 ? std::to_string(stage.ranks.front())
                                                      : concat(stage.ranks.front(), "..", stage.ranks.back());
    table.row({std::to_string(s), concat(stage.grid), std::to_string(stage.batch_ways), ranks,
               std::to_string(cell_of(stage.end_node - 1) - cell_of(stage.first_node) + 1),
               std::to_string(stage.end_node - stage.first_node), human_count(static_cast<double>(parameters)), gflop,
               human_bytes(static_cast<std::int64_t>(kept * element_bytes / members)),
               std::to_string(moved.exchanges * plan.micros()), std::to_string(moved.messages * plan.micros()),
               human_bytes(moved.elements * element_bytes * plan.micros())});
  }
  const Shape& image = graph.nodes()[0].shape;
  std::string head = concat("image ", image, ", batch ", plan.global_batch());
  if (plan.global_batch() != plan.batch_size)
    head += concat(" = ", plan.batch_size, " x ", plan.global_batch() / plan.batch_size);
  head += concat(" in ", plan.global_micros(), plan.global_micros() == 1 ? " micro" : " micros", " of ",
                 plan.global_batch() / plan.global_micros(), ", replicas ", plan.replicas, ", schedule ",
                 to_string(plan.schedule), ", batch norm over ", to_string(plan.batch_norm), ", ranks ", plan.ranks(),
                 "\n");
  if (plan.turns()) {
    std::vector<std::string> turns;
    for (const auto& stage : plan.stages) turns.push_back(concat(stage.turns));
    head += concat("turns ", join(turns, ","), ": tiles that each rank of a stage works through\n");
  }
  if (plan.fused_layers > 0) head += concat("margins shared by ", plan.fused_layers, " cells\n");
  return head + table.str() +
         "kept: from forward to backward, per rank, with --recompute norm\n"
         "exchanges, messages and bytes: of one step and replica, forward and backward, over all ranks of the stage\n";
}

}  // namespace tessera
