// Where a network looked. Many networks end in a mean over all positions and a linear layer. A linear layer may as well
// come first: then it makes a plane for each class, a class activation map, and the mean of a class's plane is its
// logit. So the maps are nothing but the same network with its last two layers in the other order, and run on any plan.
#pragma once

#include "tessera/graph/graph.h"

namespace tessera {

struct ClassMaps {
  Graph graph;  ///< says the same; has the parameters of the network, under their names, but for auxiliary heads
  Value maps;   ///< one channel for each class
};

/// Throws UsageError that says why, if the network does not end like that.
ClassMaps with_class_maps(const Graph& graph);

}  // namespace tessera
