#include "tessera/runtime/workspaces.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <map>
#include <memory>

#include "tessera/ops/kernel.h"

namespace tessera {
KernelWorkspace kernel_workspaces(const Graph& graph, const at::TensorOptions& activations) {
  struct Known {
    Step step;  // the kernel looks at it
    std::unique_ptr<Kernel> kernel;
  };
  const auto known = std::make_shared<std::map<int, Known>>();  // by node
  return [&graph, activations, known](const Step& step, const Box& out, const Box& in,
                                      int threads) -> std::optional<Workspace> {
    const auto [found, fresh] = known->try_emplace(step.node);
    Known& k = found->second;
    if (fresh) {
      k.step = step;
      // Tensors without data: nothing is computed with them.
      const auto parameters = [&](const Node& node) {
        NodeParameters held;
        for (const auto& spec : node.parameters) {
          held.values.push_back(at::empty(spec.sizes, activations.device(at::kMeta)));
          held.gradients.push_back(held.values.back());
        }
        return held;
      };
      k.kernel = kernels().make({graph, k.step, parameters, activations});
    }
    // Kernels look at how many threads their caller has, which keeps that number: for every change torch makes a pool of
    // threads anew, and that can take milliseconds.
    if (threads != at::get_num_threads()) at::set_num_threads(threads);
    return k.kernel->workspace(out, in);
  };
}

}  // namespace tessera
