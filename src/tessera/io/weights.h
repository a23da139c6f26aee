// The weights of a network from the disk into its parameters: by the names of the graph, whatever the plan.
#pragma once

#include <string>

#include "tessera/graph/graph.h"
#include "tessera/io/tensor_store.h"
#include "tessera/runtime/parameters.h"

namespace tessera {

/// Throws UsageError, which names the flag and the tensors that differ, unless `path` (a safetensors file or a
/// checkpoint: see TensorStore) holds all that the network has. Batch counters, which old files lack, may be missing.
/// Of a checkpoint every byte is compared with its checksum.
void check_weights(const std::string& flag, const std::string& path, const Graph& graph);

/// Reads the values of these parameters, running statistics among them; floating point numbers become those of the
/// parameters' type. What the file lacks stays as it is. Every rank reads what it holds.
void load_weights(const std::string& path, const Parameters& into);

}  // namespace tessera
