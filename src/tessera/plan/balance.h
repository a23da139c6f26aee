// Cutting the cells of a network into stages.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tessera/graph/graph.h"

namespace tessera {

/// What the stages should have the same of, a rank.
enum class BalanceBy { time, memory };

/// Time of a node, in the time of one floating-point operation: convolutions are bound by arithmetic, the nodes between
/// them by memory, so both count. Only ratios mean anything.
struct Work {
  double forward = 0;
  double input_gradient = 0;
  double weight_gradient = 0;
  Work& operator+=(const Work& o);
  double total() const { return forward + input_gradient + weight_gradient; }
};
Work node_work(const Graph& graph, const Node& node, std::int64_t samples);

/// How many cells each stage takes, so that the worst stage is as good as can be: the slowest one as fast (by time), or
/// the fullest one as small (by memory). ranks_per_stage: over how many ranks a stage's samples and pixels are spread.
/// Throws UsageError if there are more stages than cells.
std::vector<int> balance_cells(const Graph& graph, int stages, BalanceBy by,
                               std::span<const std::int64_t> ranks_per_stage);

/// The same for cells whose times are known: seconds of each on one rank.
std::vector<int> balance_seconds(std::span<const double> cells, std::span<const std::int64_t> ranks_per_stage);

/// --balance 5,7,6: the cells of each stage. Throws UsageError unless there is one number a stage, each at least 1, and
/// together they are all cells.
std::vector<int> parse_balance(const std::string& text, int stages, int cells);

}  // namespace tessera
