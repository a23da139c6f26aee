// The reverse walk of the executor.
#include <ATen/ops/full.h>

#include <algorithm>

#include "tessera/runtime/executor.h"
#include "tessera/runtime/out_of_memory.h"

namespace tessera {
namespace {

// The slab's part in `box`, with zeros where it has none.
Slab covering(const Slab& slab, const Box& box) {
  if (slab.box.contains(box)) return narrowed(slab, box);
  Slab out = zero_slab(box, slab.data.size(1), slab.data.options());
  const Box shared = intersect(slab.box, box);
  if (!shared.empty()) narrowed(out, shared).data.copy_(narrowed(slab, shared).data);
  return out;
}

// a + b all over the hull of their boxes, in one of the two if that covers it and nobody else holds it.
Slab sum(Slab a, Slab b) {
  const Box box = hull(a.box, b.box);
  const auto usable = [&](const Slab& s) { return s.box == box && exclusive(s.data); };
  if (!usable(a) && usable(b)) std::swap(a, b);
  if (!usable(a)) {
    if (a.box == box && b.box == box) return {a.data.add(b.data), box};
    Slab out = zero_slab(box, a.data.size(1), a.data.options());
    narrowed(out, a.box).data.add_(a.data);
    a = std::move(out);
  }
  narrowed(a, b.box).data.add_(b.data);
  return a;
}

// More would hold much memory; these outlast the messages of a block of layers.
constexpr std::size_t most_put_off = 3;

}  // namespace

void Executor::expect_gradients(MicroState& state) {
  if (state.expects_gradients) return;
  state.expects_gradients = true;
  for (const auto& [v, link] : departures_) {
    if (boxes(v).owned.empty()) continue;
    Slab gradient = empty_slab(boxes(v).owned, graph_.shape({v}).channels, state.pass.options);
    Movement movement =
        link.exchange.start_transpose(*wiring_.pipeline, {}, gradient.data, tag(state, link, true), Into::fresh);
    state.returning.emplace(v, MicroState::Returning{std::move(movement), std::move(gradient)});
  }
}

void Executor::backward(MicroState& state, bool defer_weights, const WeightsDone& done) {
  let_go_of_sent();
  expect_gradients(state);
  if (makes_loss()) {
    const Slab& losses = value(state, program_.steps.back().output);
    const double share = state.pass.loss_terms > 0 ? 1.0 / state.pass.loss_terms : 0;
    accumulate(state, program_.steps.back().output,
               {at::full(losses.data.sizes(), share, losses.data.options()), losses.box});
  }
  for (std::size_t s = program_.steps.size(); s-- > 0;) {
    naming_node(program_.steps[s].name, [&] { backward_step(state, s, defer_weights); });
    if (defer_weights) continue;
    if (s == 0)
      while (fill_wait(state)) continue;
    const std::size_t complete = state.deferred.empty() ? s : state.deferred.front().step + 1;
    if (done && complete < program_.steps.size()) done(program_.steps[complete].complete_from);
  }
  if (!defer_weights) {
    state = {};
    return;
  }
  MicroState rest;
  rest.pass = std::move(state.pass);
  rest.deferred = std::move(state.deferred);
  state = std::move(rest);
}

bool Executor::fill_wait(MicroState& state) {
  if (state.deferred.empty()) return false;
  auto [s, inputs, gradients, saved] = std::move(state.deferred.front());
  state.deferred.erase(state.deferred.begin());
  const Step& step = program_.steps[s];
  BackwardArgs args{.inputs = inputs,
                    .output = {},
                    .gradients = std::move(gradients),
                    .wanted = {},
                    .addends = {},
                    .owned = owned_box(step),
                    .pass = state.pass,
                    .saved = saved};
  naming_node(step.name, [&] { kernels_[s]->weight_gradients(args); });
  return true;
}

void Executor::weight_gradients(MicroState& state, const WeightsDone& done) {
  while (!state.deferred.empty()) {
    const std::size_t s = state.deferred.front().step;
    fill_wait(state);
    if (done) done(program_.steps[s].complete_from);
  }
  if (done) done(program_.steps.front().complete_from);
  state = {};
}

void Executor::let_go_of_sent() {
  std::erase_if(outbox_, [](Movement& movement) { return movement.test(); });
}

void Executor::flush() {
  const Meter::Timed timed(wiring_.meter, Part::transfers);
  for (Movement& movement : outbox_) movement.finish();
  outbox_.clear();
}

void Executor::backward_step(MicroState& state, std::size_t s, bool defer_weights) {
  const Step& step = program_.steps[s];
  Kernel& kernel = *kernels_[s];
  if (wiring_.pipeline) wiring_.pipeline->progress();
  std::vector<Slab> inputs, gradients;
  gradients = take_gradients(state, step, kernel, defer_weights);
  const bool agrees = step.agreement != Agreement::none;
  const bool active = !gradients.empty() || agrees;
  if (active) {
    for (std::size_t i = 0; i < step.inputs.size(); ++i)
      if (step.needs_input[i]) restore(state, step.inputs[i]);
    if (step.needs_output) restore(state, step.output);

    inputs = gather(state, step);
    BackwardArgs args{.inputs = inputs,
                      .output = value(state, step.output),
                      .gradients = std::move(gradients),
                      .wanted = {},
                      .addends = {},
                      .owned = owned_box(step),
                      .pass = state.pass,
                      .saved = state.saved[s]};
    bool any = kernel.runs_without_wanted();
    for (int v : step.inputs) {
      args.wanted.push_back(v != 0);  // nobody asks for the gradient of the images
      any = any || v != 0;
    }
    // Weight gradients are what there is to do while messages travel, so they are put off: one is done wherever a
    // message is waited for, come or not, so that the memory that they hold is the same in every run. Without company
    // they come first, while the input's gradient takes no memory yet.
    if (kernel.has_weights() && !args.gradients.empty()) {
      const bool waits = wiring_.pipeline != nullptr && (!margins_.empty() || wiring_.norm != nullptr);
      const bool travels =
          std::any_of(step.completes.begin(), step.completes.end(), [&](int v) { return arrivals_.contains(v); });
      if (defer_weights || waits || travels)
        state.deferred.push_back({s, inputs, args.gradients, state.saved[s]});
      else
        kernel.weight_gradients(args);
    }
    if (any || agrees) {
      if (agrees)
        args.agreed = agree(step, kernel.offer_gradient(args), [&] {
          if (!defer_weights) fill_wait(state);
        });
      args.addends = take_addends(state, step, kernel);
      auto terms = kernel.input_gradients(args);
      args.gradients.clear();
      for (std::size_t i = 0; i < step.inputs.size(); ++i)
        if (args.wanted[i] && terms[i].defined()) accumulate(state, step.inputs[i], std::move(terms[i]));
    }
    for (int v : step.completes) send_back(state, v);
    if (!defer_weights)
      while (state.deferred.size() > most_put_off) fill_wait(state);
  } else {
    for (int v : step.completes) send_back(state, v);
  }
  state.saved[s].clear();
  inputs.clear();
  for (int v : step.release_after_backward) value(state, v).release();
}

std::vector<Slab> Executor::take_gradients(MicroState& state, const Step& step, const Kernel& kernel,
                                           bool defer_weights) {
  const int v = step.output;
  for (auto [it, end] = state.returning.equal_range(v); it != end; it = state.returning.erase(it)) {
    if (!defer_weights) fill_wait(state);
    {
      const Meter::Timed timed(wiring_.meter, margins_.contains(v) ? Part::margins : Part::waiting);
      it->second.movement.finish();
    }
    accumulate(state, v, std::move(it->second.gradient));
  }
  auto terms = std::move(state.gradients[static_cast<std::size_t>(v)]);
  if (boxes(v).made.empty()) return {};
  for (Slab& term : terms) term = covering(std::exchange(term, {}), boxes(v).made);
  if (terms.size() > 1 && !kernel.takes_gradient_terms()) {
    terms[0] = sum(std::move(terms[0]), std::move(terms[1]));
    terms.pop_back();
  }
  return terms;
}

std::vector<Slab> Executor::take_addends(MicroState& state, const Step& step, const Kernel& kernel) const {
  std::vector<Slab> addends(step.inputs.size());
  for (std::size_t i = 0; i < addends.size(); ++i) {
    auto& terms = state.gradients[static_cast<std::size_t>(step.inputs[i])];
    if (terms.empty() || !kernel.takes_addend(i) || terms.back().box != boxes(step.output).made) continue;
    addends[i] = std::move(terms.back());
    terms.pop_back();
  }
  return addends;
}

void Executor::accumulate(MicroState& state, int v, Slab term) const {
  auto& terms = state.gradients[static_cast<std::size_t>(v)];
  terms.push_back(std::move(term));
  if (terms.size() <= 2) return;
  // Two terms are summed on the way by the step that takes them; more would only hold memory.
  terms[1] = sum(std::move(terms[1]), std::move(terms[2]));
  terms.pop_back();
}

Slab Executor::take_merged(MicroState& state, int v, const Box& inside, const Box& box) const {
  auto& terms = state.gradients[static_cast<std::size_t>(v)];
  Slab merged;
  std::vector<Slab> rest;
  for (Slab& term : terms) {
    if (inside.contains(intersect(term.box, graph_.shape({v}).box(term.box.batch()))) && merged.defined())
      rest.push_back(std::move(term));
    else if (merged.defined())
      merged = sum(std::move(merged), std::move(term));
    else
      merged = std::move(term);
  }
  terms = std::move(rest);
  if (!merged.defined()) return zero_slab(box, graph_.shape({v}).channels, state.pass.options);
  return covering(merged, box);
}

void Executor::send_back(MicroState& state, int v) {
  const auto& [owned, made, held, frame, inside] = boxes(v);
  if (const auto margin = margins_.find(v); margin != margins_.end()) {
    Slab gradient = take_merged(state, v, made, held);
    // The neighbours' shares are added in place.
    if (!exclusive(gradient.data)) gradient.data = gradient.data.clone(at::MemoryFormat::ChannelsLast);
    const Meter::Timed timed(wiring_.meter, Part::margins);
    Movement movement = margin->second.exchange.start_transpose(
        *wiring_.pipeline, data_in(gradient, held), data_in(gradient, owned), tag(state, margin->second, true));
    state.returning.emplace(v, MicroState::Returning{std::move(movement), narrowed(gradient, made)});
  }
  if (const auto arrival = arrivals_.find(v); arrival != arrivals_.end() && !held.empty()) {
    const Slab gradient = take_merged(state, v, made, held);
    const Meter::Timed timed(wiring_.meter, Part::transfers);
    outbox_.push_back(arrival->second.exchange.start_transpose(*wiring_.pipeline, data_in(gradient, held), {},
                                                               tag(state, arrival->second, true)));
  }
}

}  // namespace tessera
