#include "tessera/runtime/executor.h"

#include <ATen/ops/full.h>

#include "tessera/base/error.h"

namespace tessera {
namespace {

// The slab itself, or a copy of it with zeros around it.
Slab covering(const Slab& slab, const Box& box) {
  if (slab.box == box) return slab;
  Slab out = empty_slab(box, slab.data.size(1), slab.data.options());
  out.data.zero_();
  narrowed(out, slab.box).data.copy_(slab.data);
  return out;
}

// a + b in one of the two, if nobody else holds it.
Slab sum(Slab a, Slab b) {
  const auto exclusive = [](const Slab& s) { return s.data.use_count() == 1 && s.data.storage().use_count() == 1; };
  if (!exclusive(a) && exclusive(b)) std::swap(a, b);
  if (!exclusive(a)) return {a.data.add(b.data), a.box};
  a.data.add_(b.data);
  return a;
}

}  // namespace

Executor::Executor(const Graph& graph, const Parameters& parameters, Recompute recompute)
    : graph_(graph), program_(graph, parameters, recompute) {}

double Executor::forward(MicroState& state, Slab images, PassInfo pass) {
  const Interval batch = images.box.batch();
  state.pass = std::move(pass);
  state.values.assign(graph_.nodes().size(), {});
  state.gradients.assign(graph_.nodes().size(), {});
  state.saved.assign(program_.steps.size(), {});
  value(state, 0) = std::move(images);
  for (std::size_t s = 0; s < program_.steps.size(); ++s) {
    Step& step = program_.steps[s];
    const auto inputs = gather(state, step);
    const Box out = graph_.shape({step.output}).box(batch);
    value(state, step.output) = step.kernel->forward({inputs, out, state.pass, state.saved[s]});
    for (int v : step.release_after_forward) value(state, v).data.reset();
  }
  return value(state, program_.steps.back().output).data.sum(at::kDouble).item<double>();
}

void Executor::backward(MicroState& state) {
  const Slab& losses = value(state, program_.steps.back().output);
  const double share = 1.0 / static_cast<double>(state.pass.batch);
  accumulate(state, program_.steps.back().output,
             {at::full(losses.data.sizes(), share, losses.data.options()), losses.box});
  for (std::size_t s = program_.steps.size(); s-- > 0;) backward_step(state, s);
  state = {};
}

void Executor::backward_step(MicroState& state, std::size_t s) {
  Step& step = program_.steps[s];
  if (!state.gradients[static_cast<std::size_t>(step.output)].empty()) {
    for (std::size_t i = 0; i < step.inputs.size(); ++i)
      if (step.needs.inputs[i]) restore(state, step.inputs[i]);
    if (step.needs.output) restore(state, step.output);

    const auto inputs = gather(state, step);
    BackwardArgs args{.inputs = inputs,
                      .output = value(state, step.output),
                      .gradients = take_gradients(state, step),
                      .pass = state.pass,
                      .saved = state.saved[s]};
    bool any = false;
    for (int v : step.inputs) {
      args.wanted.push_back(v != 0);  // nobody asks for the gradient of the images
      any = any || v != 0;
    }
    step.kernel->weight_gradients(args);
    if (any) {
      args.addends = take_addends(state, step);
      auto gradients = step.kernel->input_gradients(args);
      args.gradients.clear();
      for (std::size_t i = 0; i < step.inputs.size(); ++i)
        if (args.wanted[i]) accumulate(state, step.inputs[i], std::move(gradients[i]));
    }
  }
  state.saved[s].clear();
  for (int v : step.release_after_backward) value(state, v).data.reset();
}

void Executor::restore(MicroState& state, int v) {
  if (value(state, v).defined()) return;
  const auto s = static_cast<std::size_t>(program_.producer[static_cast<std::size_t>(v)]);
  Step& step = program_.steps[s];
  for (int input : step.inputs) restore(state, input);
  const auto inputs = gather(state, step);
  value(state, v) = step.kernel->recompute({inputs, value(state, v).box, state.pass, state.saved[s]});
}

std::vector<Slab> Executor::gather(const MicroState& state, const Step& step) const {
  std::vector<Slab> inputs;
  for (int v : step.inputs) inputs.push_back(state.values[static_cast<std::size_t>(v)]);
  return inputs;
}

std::vector<Slab> Executor::take_gradients(MicroState& state, const Step& step) const {
  auto terms = std::move(state.gradients[static_cast<std::size_t>(step.output)]);
  if (terms.size() > 1 && !step.kernel->takes_gradient_terms()) {
    terms[0] = sum(std::move(terms[0]), std::move(terms[1]));
    terms.pop_back();
  }
  return terms;
}

std::vector<Slab> Executor::take_addends(MicroState& state, const Step& step) const {
  std::vector<Slab> addends(step.inputs.size());
  for (std::size_t i = 0; i < addends.size(); ++i) {
    auto& terms = state.gradients[static_cast<std::size_t>(step.inputs[i])];
    if (terms.empty() || !step.kernel->takes_addend(i)) continue;
    addends[i] = std::move(terms.back());
    terms.pop_back();
  }
  return addends;
}

void Executor::accumulate(MicroState& state, int v, Slab term) const {
  auto& terms = state.gradients[static_cast<std::size_t>(v)];
  terms.push_back(covering(term, value(state, v).box));
  term = {};
  if (terms.size() <= 2) return;
  // Two terms are summed on the way by the step that takes them; more would only hold memory.
  terms[1] = sum(std::move(terms[1]), std::move(terms[2]));
  terms.pop_back();
}

}  // namespace tessera
