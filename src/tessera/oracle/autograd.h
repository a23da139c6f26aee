// The same training, done by torch's autograd and torch::optim on one device. It walks the graph node by node, knows
// nothing of Tessera's kernels, fusion, memory or plans, and so is what they are measured against.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "tessera/graph/graph.h"
#include "tessera/oracle/foreign_module.h"
#include "tessera/runtime/parameters.h"
#include "tessera/runtime/trainer.h"

namespace tessera {

/// Copies the initial parameters, so that both sides start alike.
class AutogradOracle {
 public:
  /// With a `foreign` module, which must outlive this, that one is trained in place of the graph's nodes; the loss and
  /// the names of parameters are the graph's.
  AutogradOracle(const Graph& graph, const Parameters& initial, const TrainOptions& options,
                 const ForeignModule* foreign = nullptr);
  ~AutogradOracle();

  /// The mean loss of the batch, before the step. Labels are int64, [samples] or [samples, rows, columns]. `micros`
  /// shares of the batch are run one after the other: batch norm takes its statistics over each of them.
  double step(const at::Tensor& images, const at::Tensor& labels, std::int64_t micros);

  /// What the network says in evaluation mode: with running statistics, and nothing dropped.
  at::Tensor logits(const at::Tensor& images);

  /// The gradient of the last step and the present value, by the parameters' full names.
  at::Tensor gradient(const std::string& name) const;
  at::Tensor value(const std::string& name) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera
