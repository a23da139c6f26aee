// The graph of a .pt2 file, models/model.json of its archive, as a foreign program. No torch in here.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "tessera/import/foreign.h"

namespace tessera {

/// The values that weights and buffers are, by their full names, are for the caller to fill in before the program is
/// followed: `weights` says which constant node (an index into body.nodes) stands for which name.
struct Pt2Graph {
  ForeignProgram program;
  std::map<std::string, std::size_t> weights;
  std::map<std::string, bool> trained;  ///< of those that are parameters: requires_grad
};

/// Throws Error where the text is not such a graph.
Pt2Graph parse_pt2_graph(std::string_view json);

}  // namespace tessera
