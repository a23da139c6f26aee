// Kernels as the executor makes and runs them, without an executor: on one rank, which agrees with itself.
#pragma once

#include <memory>

#include "tessera/ops/kernel.h"

namespace tessera::test {

/// Forward of a kernel whose step has this agreement.
inline Slab run_forward(Kernel& kernel, Agreement agreement, ForwardArgs args) {
  if (agreement != Agreement::none) args.agreed = agreed_alone(kernel.offer(args));
  return kernel.forward(args);
}
inline std::vector<Slab> run_input_gradients(Kernel& kernel, Agreement agreement, BackwardArgs& args) {
  if (agreement != Agreement::none) args.agreed = agreed_alone(kernel.offer_gradient(args));
  return kernel.input_gradients(args);
}

/// The kernel of a graph's last node, and the step that it is made for. The graph must outlive it.
class KernelOf {
 public:
  using ParametersOf = std::function<NodeParameters(const Node&)>;

  explicit KernelOf(
      const Graph& graph, const at::TensorOptions& activations = at::kDouble,
      const ParametersOf& parameters = [](const Node&) { return NodeParameters{}; })
      : program_(graph, {0, static_cast<int>(graph.nodes().size())}, Recompute::none),
        kernel_(kernels().make({graph, step(), parameters, activations})) {}
  /// With the parameters of a run: a `Parameters`.
  template <class Parameters>
  requires requires(const Parameters& p, const Node& n) { p.of(n); }
  KernelOf(const Graph& graph, const Parameters& parameters)
      : KernelOf(graph, parameters.activations(), [&](const Node& node) { return parameters.of(node); }) {}
  KernelOf(const KernelOf&) = delete;
  KernelOf& operator=(const KernelOf&) = delete;

  const Step& step() const { return program_.steps.back(); }
  Kernel& operator*() const { return *kernel_; }
  Kernel* operator->() const { return kernel_.get(); }
  /// Puts the kernel into another one, which `outer` makes of it.
  template <class Outer>
  void wrap(const Outer& outer) {
    kernel_ = outer(std::move(kernel_));
  }
  Slab forward(const ForwardArgs& args) const { return run_forward(*kernel_, step().agreement, args); }
  std::vector<Slab> input_gradients(BackwardArgs& args) const {
    return run_input_gradients(*kernel_, step().agreement, args);
  }

 private:
  const Program program_;
  std::unique_ptr<Kernel> kernel_;
};

}  // namespace tessera::test
