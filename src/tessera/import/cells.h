// Where a network can be cut: cells are found, not written.
#pragma once

#include <string>
#include <vector>

#include "tessera/graph/graph.h"

namespace tessera {

/// Cells of a graph that has none yet. `modules` has the module that each node stands in.
///
/// A cell ends where one value is all that goes on, and another block begins: a block is the module whose layers a node
/// is among ("layer1.0" of "layer1.0.conv1"). In a long row of layers each one with weights begins a cell. Where
/// connections run beside everything else (dense blocks, a network like a U), cells end where blocks do.
std::vector<Cell> find_cells(const Graph& graph, const std::vector<std::string>& modules);

}  // namespace tessera
