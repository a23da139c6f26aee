#include "tessera/planner/cell_costs.h"

#include <algorithm>
#include <cmath>

#include "tessera/base/error.h"
#include "tessera/base/index.h"

namespace tessera {
namespace {

Work scaled(const Work& work, double factor) {
  return {work.forward * factor, work.input_gradient * factor, work.weight_gradient * factor};
}

}  // namespace

void CellCosts::add(int cell, int threads, double samples, const Work& seconds) {
  auto& cells = by_threads_[threads];
  cells.resize(index(cells_));
  cells[index(cell)][samples] = seconds;
}

Work CellCosts::at(int cell, int threads, double samples) const {
  ensure(!by_threads_.empty(), "costs of cell ", cell, " are asked for, and none are known");
  const auto nearest = std::min_element(by_threads_.begin(), by_threads_.end(), [&](const auto& a, const auto& b) {
    return std::abs(a.first - threads) < std::abs(b.first - threads);
  });
  const Points& points = nearest->second[index(cell)];
  ensure(!points.empty(), "nothing is known of cell ", cell);
  const auto after = points.lower_bound(samples);
  if (after == points.begin()) return scaled(after->second, samples / after->first);
  const auto before = std::prev(after);
  if (after == points.end()) return scaled(before->second, samples / before->first);
  // What a sample takes changes slowly with how many there are.
  const double share = std::log(samples / before->first) / std::log(after->first / before->first);
  Work work = scaled(before->second, (1 - share) * samples / before->first);
  return work += scaled(after->second, share * samples / after->first);
}

std::vector<double> CellCosts::totals(int threads, double samples) const {
  std::vector<double> out;
  for (int cell = 0; cell < cells_; ++cell) out.push_back(at(cell, threads, samples).total());
  return out;
}

CellCosts estimated_costs(const Graph& graph, std::int64_t element_bytes, Recompute recompute, const Rates& rates) {
  CellCosts costs(static_cast<int>(graph.cells().size()));
  // A kernel takes its time to start, for however little it is: so not all is in proportion to the samples.
  constexpr double least = 1.0 / 4096, most = 1024;
  for (double samples = least; samples <= most; samples *= 2) {
    std::vector<Work> cells(graph.cells().size());
    for (const Node& node : graph.nodes()) {
      if (!node.op) continue;
      const Cost cost = graph.cost(node, 1);
      const double bytes = cost.elements_moved * static_cast<double>(element_bytes);
      // Point-wise nodes are fused with their neighbours, which read and write what is between them.
      const double moved = node.op->formula() ? bytes / 2 : bytes;
      const auto pass = [&](double flops) {
        return samples * std::max(flops / rates.flops, moved / rates.bytes) + rates.start;
      };
      const double forward = pass(cost.forward_flops);
      const double again = recompute == Recompute::block ? forward : 0;
      cells[index(node.cell)] += Work{forward, pass(cost.input_gradient_flops) + again,
                                      cost.weight_gradient_flops > 0 ? pass(cost.weight_gradient_flops) : 0};
    }
    for (std::size_t c = 0; c < cells.size(); ++c) costs.add(static_cast<int>(c), 1, samples, cells[c]);
  }
  return costs;
}

Interval cells_of(const Graph& graph, const Stage& stage) {
  const auto cell = [&](int node) { return graph.nodes()[index(node)].cell; };
  return {cell(stage.first_node), cell(stage.end_node - 1) + 1};
}

Work stage_seconds(const Graph& graph, const Plan& plan, int stage, const CellCosts& costs, int threads) {
  const Stage& s = plan.stages[index(stage)];
  const double samples = static_cast<double>(plan.micro_size()) / static_cast<double>(s.ranks.size());
  Work work;
  const Interval cells = cells_of(graph, s);
  for (std::int64_t cell = cells.begin; cell < cells.end; ++cell)
    work += costs.at(static_cast<int>(cell), threads, samples);
  return work;
}

}  // namespace tessera
