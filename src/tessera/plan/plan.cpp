#include "tessera/plan/plan.h"

#include <algorithm>
#include <array>

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
