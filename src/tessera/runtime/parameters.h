// The parameters of a stage: one flat buffer of values and one of gradients, and a view into them for every name. So
// the optimizer and the gradient sync work on long runs of memory, however many small parameters there are.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "tessera/graph/graph.h"
#include "tessera/ops/kernel.h"

namespace tessera {

struct Parameter {
  std::string name;
  at::Tensor value;     ///< torch's shape; convolution weights lie channels-last
  at::Tensor gradient;  ///< undefined for running statistics
};

class Parameters {
 public:
  /// Initialised by name and seed: the same on every rank that holds the node.
  Parameters(const Graph& graph, at::ScalarType dtype, std::uint64_t seed);

  NodeParameters of(const Node& node) const;
  /// In the order of the graph.
  const std::vector<Parameter>& all() const { return all_; }
  const Parameter& at(const std::string& name) const;

  /// All trainable values and their gradients, one after the other.
  const at::Tensor& flat_values() const { return values_; }
  const at::Tensor& flat_gradients() const { return gradients_; }

 private:
  at::Tensor values_, gradients_;
  std::vector<Parameter> all_;
  std::map<std::string, std::size_t> index_;
};

}  // namespace tessera
