// Which nodes become one step.
#pragma once

#include "tessera/program/program.h"

namespace tessera {

/// The steps of the nodes, in an order in which they can run; inputs, output and point-wise formula only.
std::vector<Step> fused_steps(const Graph& graph, NodeRange nodes, const SameBoxes& same_boxes);

}  // namespace tessera
