// The reverse walk of a member.
#include <ATen/ops/full.h>

#include <algorithm>

#include "tessera/runtime/member.h"
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

}  // namespace

void Member::expect_gradients(MemberState& state) {
  if (state.expects_gradients) return;
  state.expects_gradients = true;
  for (const auto& [v, link] : departures_) {
    if (boxes(v).owned.empty()) continue;
    Slab gradient = empty_slab(boxes(v).owned, work_.graph.shape({v}).channels, state.pass.options);
    Movement movement = link.exchange.start_transpose(*places_, {}, gradient.data, tag(state, link, true), Into::fresh);
    state.returning.emplace(v, MemberState::Returning{std::move(movement), std::move(gradient), false});
  }
}

void Member::begin_backward(MemberState& state) {
  expect_gradients(state);
  const int loss = static_cast<int>(work_.graph.nodes().size()) - 1;
  if (steps().back().output != loss || !owns(loss)) return;
  const Slab& losses = value(state, loss);
  const double share = state.pass.loss_terms > 0 ? 1.0 / state.pass.loss_terms : 0;
  const at::Tensor& there = state.pass.there.loss_share;
  const at::Tensor gradient = there.defined() ? at::empty(losses.data.sizes(), losses.data.options()).copy_(there)
                                              : at::full(losses.data.sizes(), share, losses.data.options());
  accumulate(state, loss, {gradient, losses.box});
}

bool Member::fill_wait(MemberState& state) {
  if (state.deferred.empty()) return false;
  auto [s, inputs, gradients, saved] = std::move(state.deferred.front());
  state.deferred.erase(state.deferred.begin());
  const Step& step = steps()[s];
  BackwardArgs args{.inputs = inputs,
                    .output = {},
                    .gradients = std::move(gradients),
                    .wanted = {},
                    .addends = {},
                    .owned = owned_box(step),
                    .pass = state.pass,
                    .saved = saved};
  naming_node(step.name, [&] { work_.kernels[s]->weight_gradients(args); });
  return true;
}

void Member::let_go_of_sent() {
  std::erase_if(outbox_, [](Movement& movement) { return movement.test(); });
}

void Member::flush() {
  const Meter::Timed timed(work_.meter, Part::transfers);
  for (Movement& movement : outbox_) movement.finish();
  outbox_.clear();
}

void Member::restore_for(MemberState& state, const Step& step) const {
  for (std::size_t i = 0; i < step.inputs.size(); ++i)
    if (step.needs_input[i]) restore(state, step.inputs[i]);
  if (step.needs_output) restore(state, step.output);
}

Offer Member::offer_gradient(MemberState& state, std::size_t s, bool defer_weights) {
  const Step& step = steps()[s];
  Kernel& kernel = *work_.kernels[s];
  if (places_) places_->progress();
  wake_saved(state, s);
  std::vector<Slab> gradients = take_gradients(state, step, kernel, defer_weights);
  const bool agrees = step.agreement != Agreement::none;
  if (gradients.empty() && !agrees) return {};
  restore_for(state, step);

  state.halfway.reset(new MemberState::Halfway{s,
                                               gather(state, step),
                                               {.inputs = {},
                                                .output = value(state, step.output),
                                                .gradients = std::move(gradients),
                                                .wanted = {},
                                                .addends = {},
                                                .owned = owned_box(step),
                                                .pass = state.pass,
                                                .saved = state.saved[s]}});
  BackwardArgs& args = state.halfway->args;
  args.inputs = state.halfway->inputs;
  for (const int v : step.inputs) args.wanted.push_back(v != 0);  // nobody asks for the gradient of the images
  weigh(state, s, defer_weights);
  return agrees ? kernel.offer_gradient(args) : Offer{};
}

// Weight gradients are what there is to do while messages travel, so they are put off: one is done wherever a message
// is waited for, come or not, so that the memory that they hold is the same in every run. Without company they come
// first, while the input's gradient takes no memory yet; but for the last ones before the gradient of another stage's
// value leaves, because that stage waits for it.
void Member::weigh(MemberState& state, std::size_t s, bool defer_weights) {
  auto& [step_number, inputs, args, away] = *state.halfway;
  if (!work_.kernels[s]->has_weights() || args.gradients.empty()) return;
  const bool waits = work_.fills_waits && (!margins_.empty() || work_.agrees_on_norms);
  if (defer_weights || waits || put_off_[s])
    state.deferred.push_back({s, inputs, args.gradients, state.saved[s]});
  else
    work_.kernels[s]->weight_gradients(args);
}

void Member::backward_step(MemberState& state, std::size_t s, bool defer_weights, at::Tensor agreed) {
  const Step& step = steps()[s];
  Kernel& kernel = *work_.kernels[s];
  if (const auto halfway = std::move(state.halfway)) {
    BackwardArgs& args = halfway->args;
    args.agreed = std::move(agreed);
    if (work_.turns) {  // others had their turns in between
      for (auto& away : halfway->away) *away.place = away.stored->get();
      halfway->away.clear();
      wake_saved(state, s);
      restore_for(state, step);
      halfway->inputs = gather(state, step);
      args.inputs = halfway->inputs;
      args.output = value(state, step.output);
    }
    const bool any = std::any_of(step.inputs.begin(), step.inputs.end(), [](int v) { return v != 0; });
    if (any || kernel.runs_without_wanted() || step.agreement != Agreement::none) {
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
  state.away_saved.erase(s);
  for (int v : step.release_after_backward) forget(state, v);
}

std::vector<Slab> Member::take_gradients(MemberState& state, const Step& step, const Kernel& kernel,
                                         bool defer_weights) {
  const int v = step.output;
  wake_gradients(state, v);
  for (auto [it, end] = state.returning.equal_range(v); it != end; it = state.returning.erase(it)) {
    if (!defer_weights) fill_wait(state);
    {
      const Meter::Timed timed(work_.meter, margins_.contains(v) ? Part::margins : Part::waiting);
      if (work_.apart() && it->second.margin)
        it->second.movement.finish_onto(data_in(it->second.gradient, boxes(v).owned));
      else
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

std::vector<Slab> Member::take_addends(MemberState& state, const Step& step, const Kernel& kernel) const {
  std::vector<Slab> addends(step.inputs.size());
  for (std::size_t i = 0; i < addends.size(); ++i) {
    wake_gradients(state, step.inputs[i]);
    auto& terms = state.gradients[static_cast<std::size_t>(step.inputs[i])];
    if (terms.empty() || !kernel.takes_addend(i) || terms.back().box != boxes(step.output).made) continue;
    addends[i] = std::move(terms.back());
    terms.pop_back();
  }
  return addends;
}

void Member::accumulate(MemberState& state, int v, Slab term) const {
  wake_gradients(state, v);
  auto& terms = state.gradients[static_cast<std::size_t>(v)];
  terms.push_back(std::move(term));
  if (terms.size() <= 2) return;
  // Two terms are summed on the way by the step that takes them; more would only hold memory.
  terms[1] = sum(std::move(terms[1]), std::move(terms[2]));
  terms.pop_back();
}

Slab Member::take_merged(MemberState& state, int v, const Box& inside, const Box& box) const {
  wake_gradients(state, v);
  auto& terms = state.gradients[static_cast<std::size_t>(v)];
  Slab merged;
  std::vector<Slab> rest;
  for (Slab& term : terms) {
    if (inside.contains(intersect(term.box, work_.graph.shape({v}).box(term.box.batch()))) && merged.defined())
      rest.push_back(std::move(term));
    else if (merged.defined())
      merged = sum(std::move(merged), std::move(term));
    else
      merged = std::move(term);
  }
  terms = std::move(rest);
  if (!merged.defined()) return zero_slab(box, work_.graph.shape({v}).channels, state.pass.options);
  return covering(merged, box);
}

void Member::send_back(MemberState& state, int v) {
  const auto& [owned, made, held, frame, inside] = boxes(v);
  if (const auto margin = margins_.find(v); margin != margins_.end()) {
    Slab gradient = take_merged(state, v, made, held);
    // The neighbours' shares are added in place.
    if (!exclusive(gradient.data)) gradient.data = gradient.data.clone(at::MemoryFormat::ChannelsLast);
    const Meter::Timed timed(work_.meter, Part::margins);
    const Exchange& exchange = margin->second.exchange;
    const Tag back = tag(state, margin->second, true);
    Movement movement =
        work_.apart() ? exchange.start_transpose_apart(*places_, data_in(gradient, held), back)
                      : exchange.start_transpose(*places_, data_in(gradient, held), data_in(gradient, owned), back);
    state.returning.emplace(v, MemberState::Returning{std::move(movement), narrowed(gradient, made), true});
  }
  if (const auto arrival = arrivals_.find(v); arrival != arrivals_.end() && !held.empty()) {
    const Slab gradient = take_merged(state, v, made, held);
    const Meter::Timed timed(work_.meter, Part::transfers);
    outbox_.push_back(arrival->second.exchange.start_transpose(*places_, data_in(gradient, held), {},
                                                               tag(state, arrival->second, true)));
  }
}

}  // namespace tessera
