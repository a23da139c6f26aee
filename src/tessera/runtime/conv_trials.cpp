#include "tessera/runtime/conv_trials.h"

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>

#include <functional>
#include <map>
#include <memory>

#include "tessera/ops/kernel.h"
#include "tessera/ops/way_choices.h"
#include "tessera/plan/layout.h"
#include "tessera/runtime/memory.h"

namespace tessera {
namespace {

// Who makes what: steps of one node are alike on all ranks but for their boxes.
struct Work {
  const Step* step;
  std::vector<Box> outs;
};
using WorkOfThreads = std::map<int, std::map<int, Work>>;  // by number of threads and node

void try_step(const ConvTrials& trials, const Work& work) {
  const auto parameters = [&](const Node& node) {
    NodeParameters held;
    for (const auto& spec : node.parameters) {
      // As a run has them: of weights whose windows are single pixels, only the strides tell torch their order.
      const auto order = spec.sizes.size() == 4 ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
      const at::Tensor value = at::empty(spec.sizes, trials.activations, order).fill_(0.5);
      held.values.push_back(value);
      held.gradients.push_back(value);
    }
    return held;
  };
  const auto kernel = kernels().make({trials.graph, *work.step, parameters, trials.activations});
  // Images want no gradient.
  const bool of_input = work.step->inputs[0] != 0;
  const auto account = std::make_shared<MemoryAccount>();
  const MemoryScope scope(account);
  const auto peak_bytes = [&](const std::function<void()>& run) {
    const std::int64_t before = account->live_bytes();
    account->reset_peak();
    run();
    return static_cast<double>(account->peak_bytes() - before);
  };
  for (const Box& out : work.outs) kernel->try_ways({out, trials.training, of_input, peak_bytes});
}

}  // namespace

void try_convolutions(const ConvTrials& trials) {
  WayChoices& ways = WayChoices::of_process();
  if (!ways.measured() || !trials.activations.device().is_cpu()) return;
  install_cpu_allocator();
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const Layout layout = make_layout(trials.graph, trials.plan);
  std::vector<Program> programs;
  for (int s = 0; s < static_cast<int>(trials.plan.stages.size()); ++s)
    programs.push_back(stage_program(trials.graph, trials.plan, layout, s, Recompute::none));
  WorkOfThreads all;
  for (int rank = 0; rank < trials.plan.ranks_per_replica(); ++rank)
    for (const auto& place : trials.plan.places_of(rank))
      for (const Step& step : programs[static_cast<std::size_t>(place.stage)].steps) {
        if (step.pointwise || step.inputs.empty()) continue;
        const Box& out = layout.at(place.stage, step.output).made[static_cast<std::size_t>(place.member)];
        Work& work = all[trials.threads[static_cast<std::size_t>(rank)]][step.node];
        work.step = &step;
        if (!out.empty()) work.outs.push_back(out);
      }
  const int before = at::get_num_threads();
  for (const auto& [threads, nodes] : all) {
    at::set_num_threads(threads);
    for (const auto& [node, work] : nodes)
      if (trials.graph.node({node}).op->kind() == "conv") try_step(trials, work);
  }
  at::set_num_threads(before);
  ways.save();
}

}  // namespace tessera
