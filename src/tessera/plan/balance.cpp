#include "tessera/plan/balance.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <numeric>
#include <sstream>

#include "tessera/base/error.h"
#include "tessera/program/program.h"

namespace tessera {
namespace {

// Processors do about ten operations in the time in which they move a byte (a core with AVX-512: 80 GFLOP/s and
// 8 GB/s; an A100 in single precision: 19 TFLOP/s and 1.6 TB/s), and an element has four bytes.
constexpr double flops_per_element_moved = 40;

// A parameter has its gradient and its momentum beside it, and every rank of a stage has all of them.
constexpr double copies_of_a_parameter = 3;

struct CellCost {
  double shared = 0;  ///< spread over the ranks of the stage
  double whole = 0;   ///< the same on each of them
};

std::vector<CellCost> cell_costs(const Graph& graph, BalanceBy by) {
  std::vector<CellCost> costs(graph.cells().size());
  const Program program(graph, {0, static_cast<int>(graph.nodes().size())}, Recompute::norm);
  for (std::size_t n = 0; n < graph.nodes().size(); ++n) {
    const Node& node = graph.nodes()[n];
    auto& cost = costs[static_cast<std::size_t>(node.cell)];
    if (by == BalanceBy::time) {
      cost.shared += node_work(graph, node, 1).total();
    } else {
      if (program.keep[n] == Keep::stored) cost.shared += static_cast<double>(node.shape.elements());
      for (const auto& spec : node.parameters)
        cost.whole += copies_of_a_parameter * static_cast<double>(spec.elements());
    }
  }
  return costs;
}

// Costs of runs of cells on the ranks of a stage, from sums over all cells before.
class StageCosts {
 public:
  StageCosts(const std::vector<CellCost>& cells, std::span<const std::int64_t> ranks) : ranks_(ranks), sums_(1) {
    for (const auto& cell : cells)
      sums_.push_back({sums_.back().shared + cell.shared, sums_.back().whole + cell.whole});
  }
  int stages() const { return static_cast<int>(ranks_.size()); }
  int cells() const { return static_cast<int>(sums_.size()) - 1; }
  double operator()(int stage, int first, int end) const {
    const auto &a = sums_[static_cast<std::size_t>(first)], &b = sums_[static_cast<std::size_t>(end)];
    return (b.shared - a.shared) / static_cast<double>(ranks_[static_cast<std::size_t>(stage)]) + (b.whole - a.whole);
  }

 private:
  std::span<const std::int64_t> ranks_;
  std::vector<CellCost> sums_;
};

struct Cut {
  double value = 0;
  std::vector<int> cells;  ///< of each stage
};

// The best cut by a dynamic programme: best[stage][end] is the best value of the stages up to `stage` over the cells
// before `end`, and combine(value so far, cost of the next stage) is what a further stage makes of it.
template <class Combine>
Cut best_cut(const StageCosts& cost, const Combine& combine) {
  constexpr double never = std::numeric_limits<double>::infinity();
  const int stages = cost.stages(), cells = cost.cells();
  const auto width = static_cast<std::size_t>(cells) + 1;
  std::vector<std::vector<double>> best(static_cast<std::size_t>(stages) + 1, std::vector<double>(width, never));
  std::vector<std::vector<int>> begin(best.size(), std::vector<int>(width, 0));
  best[0][0] = 0;
  for (int s = 0; s < stages; ++s) {
    const auto& before = best[static_cast<std::size_t>(s)];
    auto& now = best[static_cast<std::size_t>(s) + 1];
    for (int end = s + 1; end <= cells; ++end)
      for (int first = s; first < end; ++first) {
        const double value = combine(before[static_cast<std::size_t>(first)], cost(s, first, end));
        if (value < now[static_cast<std::size_t>(end)]) {
          now[static_cast<std::size_t>(end)] = value;
          begin[static_cast<std::size_t>(s) + 1][static_cast<std::size_t>(end)] = first;
        }
      }
  }
  Cut cut{best.back().back(), std::vector<int>(static_cast<std::size_t>(stages))};
  for (int s = stages, end = cells; s > 0; --s) {
    const int first = begin[static_cast<std::size_t>(s)][static_cast<std::size_t>(end)];
    cut.cells[static_cast<std::size_t>(s) - 1] = end - first;
    end = first;
  }
  return cut;
}

std::vector<int> best_balance(const std::vector<CellCost>& costs, std::span<const std::int64_t> ranks_per_stage) {
  const StageCosts cost(costs, ranks_per_stage);
  const double worst = best_cut(cost, [](double so_far, double stage) { return std::max(so_far, stage); }).value;
  // Many cuts share the worst stage. Of these take the one whose other stages are the most alike, which keeps a stage
  // from ending up with next to nothing.
  const double allowed = worst * (1 + 1e-9);
  return best_cut(cost,
                  [&](double so_far, double stage) {
                    return stage <= allowed ? so_far + stage * stage : std::numeric_limits<double>::infinity();
                  })
      .cells;
}

}  // namespace

Work& Work::operator+=(const Work& o) {
  forward += o.forward;
  input_gradient += o.input_gradient;
  weight_gradient += o.weight_gradient;
  return *this;
}

Work node_work(const Graph& graph, const Node& node, std::int64_t samples) {
  const Cost cost = graph.cost(node, samples);
  const double moved = flops_per_element_moved * cost.elements_moved;
  // Each pass over a node's values moves about as much as forward; without weights there is no third pass.
  return {cost.forward_flops + moved, cost.input_gradient_flops + moved,
          cost.weight_gradient_flops > 0 ? cost.weight_gradient_flops + moved : 0};
}

std::vector<int> balance_cells(const Graph& graph, int stages, BalanceBy by,
                               std::span<const std::int64_t> ranks_per_stage) {
  const int cells = static_cast<int>(graph.cells().size());
  ensure(stages >= 1 && static_cast<int>(ranks_per_stage.size()) == stages, stages, " stages with ",
         ranks_per_stage.size(), " numbers of ranks");
  require(stages <= cells, "--split-size ", stages, " asks for more stages than the network's ", cells,
          cells == 1 ? " cell" : " cells", "; use --split-size ", cells, " or less");
  return best_balance(cell_costs(graph, by), ranks_per_stage);
}

std::vector<int> balance_seconds(std::span<const double> cells, std::span<const std::int64_t> ranks_per_stage) {
  ensure(ranks_per_stage.size() <= cells.size(), ranks_per_stage.size(), " stages of ", cells.size(), " cells");
  std::vector<CellCost> costs;
  for (const double seconds : cells) costs.push_back({.shared = seconds});
  return best_balance(costs, ranks_per_stage);
}

std::vector<int> parse_balance(const std::string& text, int stages, int cells) {
  std::vector<int> balance;
  std::istringstream list(text + ",");
  for (std::string item; std::getline(list, item, ',');) {
    int count = 0;
    const auto [end, error] = std::from_chars(item.data(), item.data() + item.size(), count);
    require(error == std::errc() && end == item.data() + item.size(), "--balance ", text, ": '", item,
            "' is not a number of cells; write one number per stage, like --balance 5,7,6");
    require(count >= 1, "--balance ", text, ": a stage of ", count, " cells has nothing to do; use at least 1");
    balance.push_back(count);
  }
  require(static_cast<int>(balance.size()) == stages, "--balance ", text, " is for ", balance.size(),
          balance.size() == 1 ? " stage" : " stages", " but there ", stages == 1 ? "is " : "are ", stages,
          "; write as many numbers as --split-size says");
  const auto total = std::accumulate(balance.begin(), balance.end(), std::int64_t{0});
  require(total == cells, "--balance ", text, " adds up to ", total, " cells but the network has ", cells);
  return balance;
}

}  // namespace tessera
