// How long the stages of a plan take on this machine: one member of a stage runs a micro, forward and backward, as it
// will in the run, but alone. What others would send is not waited for, and what it sends goes nowhere.
#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/planner/cell_costs.h"
#include "tessera/planner/forecast.h"
#include "tessera/runtime/optimizer.h"

namespace tessera {

struct Rehearsal {
  const Graph& graph;
  at::TensorOptions activations;
  Recompute recompute = Recompute::norm;
  int threads = 1;
  /// So many do the same at the same time, as the ranks of a machine will: they share its memory and caches, and its
  /// cores, where these are fewer. 0 cores: they have a device each.
  int company = 1;
  int cores = 0;
};

/// Finds the fastest way for every convolution of the plan, where ways are chosen by measurement: the run will take it.
void choose_ways(const Rehearsal& rehearsal, const Plan& plan);

/// Seconds of a micro on the member of the stage that has most to do, as if it had its cores for itself. `split`:
/// weight gradients apart from the others, as zero-bubble has them; otherwise they are counted with the others.
Work rehearse(const Rehearsal& rehearsal, const Plan& plan, const Layout& layout, int stage, bool split);

/// The cells of a network, each as a stage of its own, for micros of so many samples.
void rehearse_cells(const Rehearsal& rehearsal, std::int64_t samples, CellCosts& costs);

/// Bytes of parameters that an optimizer gets through in a second.
double update_rate(const OptimizerOptions& optimizer, const at::TensorOptions& activations, int threads);

}  // namespace tessera
