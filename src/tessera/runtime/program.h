// A graph made ready to run: its nodes grouped into steps, and for every value the decision what backward finds of it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tessera/graph/graph.h"
#include "tessera/ops/kernel.h"
#include "tessera/runtime/parameters.h"

namespace tessera {

/// What may be thrown away in forward and made again in backward.
enum class Recompute {
  none,
  norm,  ///< the outputs of point-wise steps (batch norm, add, ReLU) whose inputs are kept anyway
};

/// What becomes of a value after its last use in forward.
enum class Keep { dropped, stored, recomputed };

struct Step {
  std::string name;         ///< of its last node
  std::vector<int> inputs;  ///< values
  int output = -1;          ///< value
  std::unique_ptr<Kernel> kernel;
  BackwardNeeds needs;
  /// Values whose last use in forward, or in backward, is this step.
  std::vector<int> release_after_forward, release_after_backward;
};

struct Program {
  /// Point-wise nodes (batch norm, add, ReLU) are fused as far as their inner values have no other reader.
  Program(const Graph& graph, const Parameters& parameters, Recompute recompute);

  std::vector<Step> steps;
  std::vector<Keep> keep;     ///< by value
  std::vector<int> producer;  ///< by value: the step that makes it, -1 for the input and for values inside a step
};

}  // namespace tessera
