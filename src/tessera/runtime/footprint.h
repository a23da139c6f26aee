// How much memory a plan takes, before it is run.
#pragma once

#include <vector>

#include "tessera/plan/plan.h"
#include "tessera/program/program.h"

namespace tessera {

struct FootprintOptions {
  double element_bytes = 4;  ///< of activations; parameters are float32 where these are narrower
  int states = 1;            ///< tensors that the optimizer keeps of each parameter
  bool common = false;       ///< copies keep values and states in common: see Copies
  Recompute recompute = Recompute::norm;
};

/// Bytes by rank of a replica: parameters with their gradients and optimizer state, what all micros alive at once keep
/// for backward, and the tensors at work. An estimate: scratch memory of libraries and messages is not in it.
std::vector<double> predicted_memory(const Plan& plan, const Graph& graph, const FootprintOptions& options);

}  // namespace tessera
