#pragma once

#include <vector>

#include "tessera/graph/graph.h"

namespace tessera {

/// The value that leaves each cell: the shape of its last node.
inline std::vector<Shape> cell_outputs(const Graph& g) {
  std::vector<Shape> out(g.cells().size());
  for (const Node& node : g.nodes()) out[static_cast<std::size_t>(node.cell)] = node.shape;
  return out;
}

}  // namespace tessera
