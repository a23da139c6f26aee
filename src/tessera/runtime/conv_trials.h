// Finds the fastest way to compute each convolution of a plan, before anything runs.
#pragma once

#include <ATen/core/TensorBody.h>

#include <vector>

#include "tessera/plan/plan.h"

namespace tessera {

struct ConvTrials {
  const Graph& graph;
  const Plan& plan;
  std::vector<int> threads;  ///< by rank
  at::TensorOptions activations;
  bool training = true;  ///< with gradients
};

/// Runs every convolution that a rank of the plan will run, in every way, if ways are to be measured
/// (ops/way_choices.h) and nobody has measured these; saves what it finds. All ranks' shapes in this thread, one after
/// the other, in each rank's number of threads; parts of large planes stand for the whole, so that it takes seconds.
/// Whoever has several processes does this in one, and tells the others.
void try_convolutions(const ConvTrials& trials);

}  // namespace tessera
