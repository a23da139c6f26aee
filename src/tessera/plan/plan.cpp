#include "tessera/plan/plan.h"

#include "tessera/base/error.h"
#include "tessera/base/text.h"

namespace tessera {
namespace {

// What this version cannot do yet is refused, never ignored. A flag at its neutral value asks for nothing.
void refuse_what_comes_later(const PlanOptions& o, Problems& problems) {
  const auto refuse = [&](bool asked, const char* flag, const char* capability) {
    if (asked) problems.add(flag, " asks for ", capability, ", which this version cannot do yet; leave it out");
  };
  refuse(o.split_size.value_or(1) > 1, "--split-size", "more than one stage");
  refuse(o.balance.has_value(), "--balance", "more than one stage");
  refuse(o.num_spatial_parts.value_or("1") != "1", "--num-spatial-parts", "spatial parallelism");
  refuse(o.spatial_size.value_or(0) > 0, "--spatial-size", "spatial parallelism");
  refuse(o.slice_method.has_value(), "--slice-method", "spatial parallelism");
  refuse(o.times.has_value(), "--times", "bidirectional parallelism");
  refuse(o.local_dp.value_or(1) > 1, "--local-DP", "local data parallelism");
  refuse(o.halo_d2, "--halo-D2", "fused margins");
  refuse(o.fused_layers.has_value(), "--fused-layers", "fused margins");
  problems.check(o.split_size.value_or(1) >= 1, "--split-size ", o.split_size.value_or(1), " must be at least 1");
  problems.check(o.local_dp.value_or(1) >= 1, "--local-DP ", o.local_dp.value_or(1), " must be at least 1");
}

}  // namespace

int Plan::ranks() const {
  int last = -1;
  for (const auto& stage : stages)
    for (int rank : stage.ranks) last = std::max(last, rank);
  return last + 1;
}

void check_plan_options(const PlanOptions& o) {
  Problems problems;
  problems.check(o.batch_size > 0, "--batch-size ", o.batch_size, " must be at least 1");
  problems.check(o.parts > 0, "--parts ", o.parts, " must be at least 1");
  if (o.batch_size > 0 && o.parts > 0)
    problems.check(o.batch_size % o.parts == 0, "--batch-size ", o.batch_size, " is not divisible by --parts ", o.parts,
                   "; use --batch-size ", (o.batch_size / o.parts + 1) * o.parts, " or another --parts");
  refuse_what_comes_later(o, problems);
  problems.throw_if_any();
}

Plan make_plan(const Graph& graph, const PlanOptions& o, std::optional<int> ranks_started) {
  check_plan_options(o);
  Plan plan;
  plan.batch_size = o.batch_size;
  plan.micros = o.parts;
  plan.stages = {{0, static_cast<int>(graph.nodes().size()), Grid{}, {0}}};
  if (ranks_started)
    require(*ranks_started == plan.ranks(), "the launcher started ", *ranks_started,
            *ranks_started == 1 ? " rank" : " ranks", " but this plan needs ", plan.ranks(), "; use mpirun -np ",
            plan.ranks());
  return plan;
}

std::string plan_table(const Plan& plan, const Graph& graph, int element_bytes) {
  Table table({"stage", "grid", "ranks", "cells", "nodes", "parameters", "GFLOP/step", "kept, one micro"});
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const Stage& stage = plan.stages[s];
    Cost cost;
    std::int64_t parameters = 0;
    for (int n = stage.first_node; n < stage.end_node; ++n) {
      const Node& node = graph.nodes()[static_cast<std::size_t>(n)];
      cost += graph.cost(node, plan.micro_size());
      for (const auto& spec : node.parameters) parameters += spec.trainable ? spec.elements() : 0;
    }
    const auto cell_of = [&](int n) { return graph.nodes()[static_cast<std::size_t>(n)].cell; };
    std::vector<std::string> ranks;
    for (int rank : stage.ranks) ranks.push_back(std::to_string(rank));
    char gflop[32];
    std::snprintf(gflop, sizeof gflop, "%.2f", cost.flops() * static_cast<double>(plan.micros) / 1e9);
    table.row({std::to_string(s), concat(stage.grid), join(ranks, " "),
               std::to_string(cell_of(stage.end_node - 1) - cell_of(stage.first_node) + 1),
               std::to_string(stage.end_node - stage.first_node), human_count(static_cast<double>(parameters)), gflop,
               human_bytes(static_cast<std::int64_t>(cost.elements_kept * element_bytes))});
  }
  const Shape& image = graph.nodes()[0].shape;
  return concat("image ", image, ", batch ", plan.batch_size, " in ", plan.micros,
                plan.micros == 1 ? " micro" : " micros", " of ", plan.micro_size(), ", replicas ", plan.replicas,
                ", schedule ", plan.schedule, ", ranks ", plan.ranks(), "\n", table.str());
}

}  // namespace tessera
