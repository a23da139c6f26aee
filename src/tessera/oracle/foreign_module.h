// A network of PyTorch that one rank is compared with: the module itself, run by libtorch.
#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tessera/archive/network_file.h"
#include "tessera/graph/graph.h"

namespace tessera {

struct ForeignModule {
  std::function<std::unique_ptr<ForeignNetwork>(const at::TensorOptions&)> open;
  std::vector<std::size_t> outputs;   ///< what the loss looks at, of all outputs
  std::vector<std::string> dropouts;  ///< nodes of the graph in the order in which the module drops something; those
                                      ///< that are not in the graph have no say in the loss
};

/// While this lives, what the calling thread's torch drops at random is what the graph's nodes drop: the module's n-th
/// dropout is the n-th of these nodes.
class DropoutsOf {
 public:
  struct Draw {
    std::uint64_t seed = 0;
    std::int64_t step = 0, first_sample = 0;
  };
  DropoutsOf(const Graph& graph, const std::vector<std::string>& nodes, const Draw& draw);
  ~DropoutsOf();
  DropoutsOf(const DropoutsOf&) = delete;
  DropoutsOf& operator=(const DropoutsOf&) = delete;

 private:
  std::unique_ptr<c10::impl::IncludeDispatchKeyGuard> included_;
};

}  // namespace tessera
