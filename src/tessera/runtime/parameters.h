// The parameters of a stage: one flat buffer of values and one of gradients, and a view into them for every name. So
// the optimizer and the gradient sync work on long runs of memory, however many small parameters there are.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "tessera/graph/graph.h"
#include "tessera/ops/kernel.h"
#include "tessera/runtime/copies.h"

namespace tessera {

struct Parameter {
  std::string name;
  at::Tensor value;  ///< torch's shape; convolution weights lie channels-last
  at::Tensor sum;    ///< what a step adds up: the gradient, or a running statistic's new shares
  bool trainable = true;
  at::Tensor narrow = {};  ///< what kernels compute with, where that is not the value itself
  bool as_matrix = false;  ///< see ParameterSpec

  /// A tensor that is shaped like the value, as files have it: a view.
  at::Tensor stored(const at::Tensor& like_value) const {
    return as_matrix ? like_value.squeeze(3).squeeze(2) : like_value;
  }
};

class Parameters {
 public:
  /// Of the nodes [first, end). Initialised by name and seed: the same on every rank that holds the node. `computed`
  /// says where they lie and what activations are; with bfloat16 activations they are float32, and convolutions and
  /// linear layers see rounded copies. Collective over the copies.
  Parameters(const Graph& graph, int first_node, int end_node, const at::TensorOptions& computed, std::uint64_t seed,
             const Copies& copies = {});

  /// Brings the rounded copies up to date. To be called before a pass.
  void refresh() const;
  /// What kernels compute in, and where.
  const at::TensorOptions& activations() const { return activations_; }

  NodeParameters of(const Node& node) const;
  /// In the order of the graph.
  const std::vector<Parameter>& all() const { return all_; }
  const Parameter& at(const std::string& name) const;
  /// Null if it is not here.
  const Parameter* find(const std::string& name) const;

  /// All trainable values and their gradients, one after the other.
  const at::Tensor& flat_values() const { return values_; }
  /// All running statistics but the counters, one after the other.
  const at::Tensor& flat_statistics() const { return statistics_; }
  bool is_statistic(const Parameter& parameter) const { return parameter.value.is_alias_of(statistics_); }
  at::Tensor flat_gradients() const { return sums_.narrow(0, 0, values_.size(0)); }
  /// The gradients, and behind them the shares of the statistics: what copies of these parameters add up.
  const at::Tensor& flat_sums() const { return sums_; }
  /// Where the gradients of the nodes from this one on begin in flat_sums(); backward completes them from the end.
  std::int64_t offset_of(int node) const { return offsets_[static_cast<std::size_t>(node - first_node_)]; }

  /// The part of `flat`, which lies like flat_values(), that stands where a trainable parameter's value does; or like
  /// flat_statistics(), for a statistic.
  at::Tensor part_like(const Parameter& parameter, const at::Tensor& flat) const;

  /// Takes the step's shares into the running statistics, which decay by `micros` micros.
  void update_statistics(std::int64_t micros) const;

 private:
  int first_node_ = 0;
  at::TensorOptions activations_;
  at::Tensor values_, sums_;
  at::Tensor narrow_;                // values_ in the type of the activations, if that is another
  at::Tensor fixed_, fixed_narrow_;  // what is not trained; fixed_sums_ takes gradients that nobody reads
  at::Tensor fixed_sums_;
  at::Tensor statistics_, counters_, decay_;  // one behind the other, like their sums behind the gradients
  std::vector<Parameter> all_;
  std::vector<std::int64_t> offsets_;  // by node
  std::map<std::string, std::size_t> index_;
};

}  // namespace tessera
