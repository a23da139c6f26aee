// The nodes of a stage made ready to run on one of its members: grouped into steps, and for every value the decision
// what backward finds of it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tessera/graph/graph.h"
#include "tessera/ops/kernel.h"
#include "tessera/plan/layout.h"
#include "tessera/runtime/parameters.h"

namespace tessera {

/// What may be thrown away in forward and made again in backward.
enum class Recompute {
  none,
  norm,   ///< the outputs of point-wise steps (batch norm, add, ReLU) whose inputs are kept anyway
  block,  ///< whatever only its own cell reads, convolutions too; outputs of cells are kept
};

/// What becomes of a value after its last use in forward.
enum class Keep { dropped, stored, recomputed };

struct Step {
  std::string name;         ///< of its last node
  int complete_from = 0;    ///< all nodes from this one on have gone back once this step has
  std::vector<int> inputs;  ///< values
  int output = -1;          ///< value
  bool reduces = false;     ///< every member takes part, whoever owns the output
  std::unique_ptr<Kernel> kernel;
  BackwardNeeds needs;
  /// Values whose last use in forward, or in backward, is this step.
  std::vector<int> release_after_forward, release_after_backward;
  /// The former, and those that only backward still wants: what is released where no backward follows.
  std::vector<int> release_in_evaluation;
  /// Values that no earlier step reads: after this step's backward their gradient is complete, but for other stages.
  std::vector<int> completes;
};

/// Elements that a micro keeps from forward to backward on the stage's first member, which has no smaller tile than the
/// others.
double kept_elements(const Graph& graph, const Stage& stage, const std::vector<ValueLayout>& layout,
                     Recompute recompute);

struct Program {
  /// Point-wise nodes (batch norm, add, ReLU) are fused as far as their inner values have no other reader.
  Program(const Graph& graph, const Stage& stage, const std::vector<ValueLayout>& layout, const Parameters& parameters,
          Recompute recompute);

  std::vector<Step> steps;
  std::vector<Keep> keep;     ///< by value
  std::vector<int> producer;  ///< by value: the step that makes it, -1 for what enters and for values inside a step
};

}  // namespace tessera
