// How long the cells of a network take, by how much of them a rank has: measured at a few sizes, or estimated.
#pragma once

#include <map>
#include <span>
#include <vector>

#include "tessera/plan/balance.h"
#include "tessera/planner/step_time.h"

namespace tessera {

/// Seconds of each cell's passes, by the number of threads and by samples. A tile is a share of a sample: a quarter of
/// an image is 0.25 samples.
class CellCosts {
 public:
  explicit CellCosts(int cells) : cells_(cells) {}

  void add(int cell, int threads, double samples, const Work& seconds);
  /// Between the sizes that are known, in proportion beyond them. Threads that nobody has measured: the nearest.
  Work at(int cell, int threads, double samples) const;
  /// Of all cells, forward and backward: what stages are balanced by.
  std::vector<double> totals(int threads, double samples) const;
  int cells() const { return cells_; }

 private:
  using Points = std::map<double, Work>;  // by samples
  int cells_;
  std::map<int, std::vector<Points>> by_threads_;  // [threads][cell]
};

/// From what the cells compute and move: known to a factor, which is much the same for all of them.
CellCosts estimated_costs(const Graph& graph, std::int64_t element_bytes, Recompute recompute, const Rates& rates);

/// The cells that a stage has.
Interval cells_of(const Graph& graph, const Stage& stage);

/// What one member of a stage computes for a micro, but for what tiles make twice of their margins.
Work stage_seconds(const Graph& graph, const Plan& plan, int stage, const CellCosts& costs, int threads);

}  // namespace tessera
