#include "tessera/runtime/executor.h"

#include <ATen/ops/full.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera {
namespace {

Slab zeros(const Box& box, std::int64_t channels, const at::TensorOptions& options) {
  Slab out = empty_slab(box, channels, options);
  out.data.zero_();
  return out;
}

// The slab's part in `box`, with zeros where it has none.
Slab covering(const Slab& slab, const Box& box) {
  if (slab.box.contains(box)) return narrowed(slab, box);
  Slab out = zeros(box, slab.data.size(1), slab.data.options());
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
    Slab out = zeros(box, a.data.size(1), a.data.options());
    narrowed(out, a.box).data.add_(a.data);
    a = std::move(out);
  }
  narrowed(a, b.box).data.add_(b.data);
  return a;
}

// What is left of a tile without the strips that others need: each strip goes with as little else as can be.
Box without_strips(Box tile, const std::vector<Box>& strips) {
  for (const Box& strip : strips) {
    if (intersect(strip, tile).empty()) continue;
    Box best;
    for (const Axis axis : {Axis::height, Axis::width})
      for (const Interval& rest :
           {Interval{strip[axis].end, tile[axis].end}, Interval{tile[axis].begin, strip[axis].begin}}) {
        Box cut = tile;
        cut[axis] = intersect(tile[axis], rest);
        if (!cut.empty() && cut.volume() > best.volume()) best = cut;
      }
    tile = best;
  }
  return tile;
}

// More would hold much memory; these outlast the messages of a block of layers.
constexpr std::size_t most_put_off = 3;

at::Tensor data_in(const Slab& slab, const Box& box) { return box.empty() ? at::Tensor() : narrowed(slab, box).data; }

}  // namespace

Executor::Executor(const Graph& graph, const Parameters& parameters, const Wiring& wiring, Recompute recompute)
    : graph_(graph),
      wiring_(wiring),
      program_(graph, wiring.plan.stages[static_cast<std::size_t>(wiring.place.stage)],
               wiring.layout.stages[static_cast<std::size_t>(wiring.place.stage)], parameters, recompute),
      boxes_(graph.nodes().size()) {
  const auto& [direction, stage, member] = wiring.place;
  const auto m = static_cast<std::size_t>(member);
  for (int v = 0; v < static_cast<int>(boxes_.size()); ++v) {
    const ValueLayout& layout = wiring.layout.at(stage, v);
    if (!layout.used()) continue;
    Boxes& mine = boxes_[static_cast<std::size_t>(v)];
    mine = {layout.owned[m], layout.made[m], layout.held[m], layout.frame[m], {}};
    if (!layout.exchanged || mine.made == mine.frame) continue;
    std::vector<Box> strips;
    for (std::size_t other = 0; other < layout.held.size(); ++other)
      if (other != m) strips.push_back(intersect(mine.owned, layout.held[other]));
    const Box inside = without_strips(mine.made, strips);
    if (2 * inside.volume() > mine.made.volume()) mine.inside = inside;
  }
  for (const Step& step : program_.steps) {
    const Node& node = graph.node({step.output});
    const auto shapes = graph.input_shapes(node);
    const Box& out = boxes(step.output).made;
    std::vector<bool> waits;
    for (std::size_t i = 0; i < step.inputs.size(); ++i) {
      const Box whole = graph.shape({step.inputs[i]}).box(out.batch());
      const Box need = step.reduces || out.empty() ? Box{} : intersect(node.op->input_box(out, i, shapes), whole);
      const Box& made = boxes(step.inputs[i]).made;
      waits.push_back(made.empty() || !made.contains(need));
    }
    waits_.push_back(std::move(waits));
  }
  const Rank me{wiring.plan.rank_of(direction, stage, member)};
  for (int t = 0; t < static_cast<int>(wiring.layout.transfers.size()); ++t) {
    const Transfer& transfer = wiring.layout.transfers[static_cast<std::size_t>(t)];
    if (transfer.from != stage && transfer.to != stage) continue;
    const Link link{Exchange(wiring.layout.have(wiring.plan, transfer, direction),
                             wiring.layout.need(wiring.plan, transfer, direction), me),
                    t};
    if (transfer.from == transfer.to)
      margins_.emplace(transfer.value, link);
    else if (transfer.to == stage)
      arrivals_.emplace(transfer.value, link);
    else
      departures_.emplace(transfer.value, link);
  }
}

Box Executor::loss_box() const {
  const int loss = static_cast<int>(graph_.nodes().size()) - 1;
  return program_.steps.back().output == loss ? boxes(loss).owned : Box{};
}

Tag Executor::tag(const MicroState& state, const Link& link, bool backward) const {
  return make_tag({.movement = link.transfer,
                   .micro = state.micro,
                   .upward = wiring_.place.direction == Direction::up,
                   .backward = backward});
}

// ---- Forward ----

void Executor::expect_values(MicroState& state, int micro, const at::TensorOptions& options) {
  if (!state.values.empty()) return;
  state.micro = micro;
  state.pass.options = options;
  state.values.assign(graph_.nodes().size(), {});
  state.gradients.assign(graph_.nodes().size(), {});
  state.saved.assign(program_.steps.size(), {});
  for (const auto& [v, link] : arrivals_) {
    if (boxes(v).held.empty()) continue;
    value(state, v) = new_frame(v, options);
    state.arriving[v] =
        link.exchange.start(*wiring_.pipeline, {}, data_in(value(state, v), boxes(v).held), tag(state, link, false));
  }
}

at::Tensor Executor::forward(MicroState& state, int micro, const at::Tensor& images, PassInfo pass) {
  let_go_of_sent();
  expect_values(state, micro, pass.options);
  state.pass = std::move(pass);
  if (images.defined() && !image_box().empty())
    make_framed(state, 0, [&](const Slab&) { return Slab{images, image_box()}; });
  for (std::size_t s = 0; s < program_.steps.size(); ++s) named(s, [&] { forward_step(state, s); });
  while (!state.arriving.empty()) settle(state, state.arriving.begin()->first);
  if (!makes_loss()) return {};
  return value(state, program_.steps.back().output).data.sum(at::kDouble);
}

template <class Work>
void Executor::named(std::size_t s, const Work& work) const {
  try {
    work();
  } catch (const c10::OutOfMemoryError& error) {
    const std::string text = error.what_without_backtrace();
    throw Error(concat("node '", program_.steps[s].name, "': the GPU is out of memory; use --recompute block, more ",
                       "tiles (--num-spatial-parts), stages (--split-size) or --parts, or a smaller --image-size. ",
                       text.substr(0, text.find(" See documentation"))));
  }
}

void Executor::forward_step(MicroState& state, std::size_t s) {
  Step& step = program_.steps[s];
  if (runs(step)) {
    for (std::size_t i = 0; i < step.inputs.size(); ++i)
      if (waits_[s][i]) settle(state, step.inputs[i]);
    const auto inputs = gather(state, step);
    const Boxes& out = boxes(step.output);
    ForwardArgs args{inputs, out.made, owned_box(step), state.pass, state.saved[s]};
    if (!out.inside.empty()) {
      args.inside = out.inside;
      args.edges_ready = [&] { exchange_margin(state, step.output); };
    }
    make_framed(state, step.output, [&](const Slab& into) {
      args.into = into;
      return step.kernel->forward(args);
    });
  }
  exchange_margin(state, step.output);
  send_away(state, step.output);
  const bool evaluating = state.pass.evaluating;
  if (evaluating) state.saved[s].clear();
  for (int v : evaluating ? step.release_in_evaluation : step.release_after_forward) release(state, v);
}

Executor::Answer Executor::take_answer(MicroState& state) {
  Answer answer;
  if (makes_loss()) {
    const Step& last = program_.steps.back();
    const auto owned = [&](int v) { return narrowed(value(state, v), boxes(v).owned); };
    answer = {owned(last.inputs[0]), owned(last.output)};
  }
  state = {};
  return answer;
}

Slab Executor::new_frame(int v, const at::TensorOptions& options) const {
  const Shape& shape = graph_.shape({v});
  const Box& frame = boxes(v).frame;
  Slab slab = empty_slab(frame, shape.channels, options);
  for (const Box& outside : difference(frame, shape.box(frame.batch()))) narrowed(slab, outside).data.zero_();
  return slab;
}

template <class Make>
void Executor::make_framed(MicroState& state, int v, const Make& make) const {
  const Box& made = v == 0 ? boxes(v).held : boxes(v).made;
  if (made.empty() || made == boxes(v).frame) {
    value(state, v) = make(Slab{});
    return;
  }
  value(state, v) = new_frame(v, state.pass.options);
  const Slab into = narrowed(value(state, v), made), result = make(into);
  if (result.data.data_ptr() != into.data.data_ptr()) into.data.copy_(result.data);
}

void Executor::exchange_margin(MicroState& state, int v) const {
  const auto margin = margins_.find(v);
  if (margin == margins_.end() || state.arriving.contains(v)) return;
  const Meter::Timed timed(wiring_.meter, Part::margins);
  const Slab& slab = value(state, v);
  state.arriving[v] = margin->second.exchange.start(*wiring_.pipeline, data_in(slab, boxes(v).owned),
                                                    data_in(slab, boxes(v).held), tag(state, margin->second, false));
}

void Executor::send_away(MicroState& state, int v) {
  const Meter::Timed timed(wiring_.meter, Part::transfers);
  for (auto [link, end] = departures_.equal_range(v); link != end; ++link)
    outbox_.push_back(link->second.exchange.start(*wiring_.pipeline, data_in(value(state, v), boxes(v).owned), {},
                                                  tag(state, link->second, false)));
}

void Executor::settle(MicroState& state, int v) const {
  const auto found = state.arriving.find(v);
  if (found == state.arriving.end()) return;
  const Meter::Timed timed(wiring_.meter, arrivals_.contains(v) ? Part::waiting : Part::margins);
  found->second.finish();
  state.arriving.erase(found);
}

void Executor::release(MicroState& state, int v) const {
  settle(state, v);
  Slab& slab = value(state, v);
  const auto& [owned, made, held, frame, inside] = boxes(v);
  const bool wanted_again = program_.keep[static_cast<std::size_t>(v)] == Keep::recomputed && !state.pass.evaluating;
  if (slab.defined() && wanted_again && margins_.contains(v))
    for (const Box& box : difference(held, made))
      state.margins[v].push_back({narrowed(slab, box).data.clone(at::MemoryFormat::ChannelsLast), box});
  slab.data.reset();
}

std::vector<Slab> Executor::gather(const MicroState& state, const Step& step) const {
  std::vector<Slab> inputs;
  for (int v : step.inputs) inputs.push_back(state.values[static_cast<std::size_t>(v)]);
  return inputs;
}

// ---- Backward ----

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
    const double share = state.pass.loss_terms > 0 ? 1.0 / static_cast<double>(state.pass.loss_terms) : 0;
    accumulate(state, program_.steps.back().output,
               {at::full(losses.data.sizes(), share, losses.data.options()), losses.box});
  }
  for (std::size_t s = program_.steps.size(); s-- > 0;) {
    named(s, [&] { backward_step(state, s, defer_weights); });
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
  auto [s, inputs, gradients] = std::move(state.deferred.front());
  state.deferred.erase(state.deferred.begin());
  Step& step = program_.steps[s];
  Saved none;
  BackwardArgs args{.inputs = inputs,
                    .output = {},
                    .gradients = std::move(gradients),
                    .wanted = {},
                    .addends = {},
                    .owned = owned_box(step),
                    .pass = state.pass,
                    .saved = none};
  named(s, [&] { step.kernel->weight_gradients(args); });
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
  Step& step = program_.steps[s];
  std::vector<Slab> inputs, gradients;
  if (runs(step)) gradients = take_gradients(state, step, defer_weights);
  const bool active = !gradients.empty() || (step.reduces && runs(step));
  if (active) {
    for (std::size_t i = 0; i < step.inputs.size(); ++i)
      if (step.needs.inputs[i]) restore(state, step.inputs[i]);
    if (step.needs.output) restore(state, step.output);

    inputs = gather(state, step);
    BackwardArgs args{.inputs = inputs,
                      .output = value(state, step.output),
                      .gradients = std::move(gradients),
                      .wanted = {},
                      .addends = {},
                      .owned = owned_box(step),
                      .pass = state.pass,
                      .saved = state.saved[s],
                      .meanwhile = [&] { return !defer_weights && fill_wait(state); }};
    bool any = false;
    for (int v : step.inputs) {
      args.wanted.push_back(v != 0);  // nobody asks for the gradient of the images
      any = any || v != 0;
    }
    // Weight gradients are what there is to do while messages travel, so some are put off until somebody waits; the
    // rank that is ahead does more of them there. Without company they come first, while the input's gradient takes no
    // memory yet.
    if (step.kernel->has_weights()) {
      const bool waits = wiring_.pipeline != nullptr && (!margins_.empty() || state.pass.groups.norm != nullptr);
      const bool travels =
          std::any_of(step.completes.begin(), step.completes.end(), [&](int v) { return arrivals_.contains(v); });
      if (defer_weights || waits || travels)
        state.deferred.push_back({s, inputs, args.gradients});
      else
        step.kernel->weight_gradients(args);
    }
    if (any) {
      args.addends = take_addends(state, step);
      auto terms = step.kernel->input_gradients(args);
      args.gradients.clear();
      for (std::size_t i = 0; i < step.inputs.size(); ++i)
        if (args.wanted[i]) accumulate(state, step.inputs[i], std::move(terms[i]));
    }
    for (int v : step.completes) send_back(state, v);
    if (!defer_weights)
      while (state.deferred.size() > most_put_off) fill_wait(state);
  } else {
    for (int v : step.completes) send_back(state, v);
  }
  state.saved[s].clear();
  inputs.clear();
  for (int v : step.release_after_backward) value(state, v).data.reset();
}

void Executor::restore(MicroState& state, int v) {
  if (value(state, v).defined()) return;
  const auto s = static_cast<std::size_t>(program_.producer[static_cast<std::size_t>(v)]);
  Step& step = program_.steps[s];
  for (int input : step.inputs) restore(state, input);
  const auto inputs = gather(state, step);
  make_framed(state, v, [&](const Slab& into) {
    return step.kernel->recompute({inputs, boxes(v).made, owned_box(step), state.pass, state.saved[s], into});
  });
  if (const auto margin = state.margins.find(v); margin != state.margins.end()) {
    for (const Slab& strip : margin->second) narrowed(value(state, v), strip.box).data.copy_(strip.data);
    state.margins.erase(margin);
  }
}

std::vector<Slab> Executor::take_gradients(MicroState& state, const Step& step, bool defer_weights) {
  const int v = step.output;
  for (auto [it, end] = state.returning.equal_range(v); it != end; it = state.returning.erase(it)) {
    while (!defer_weights && !it->second.movement.test() && fill_wait(state)) continue;
    {
      const Meter::Timed timed(wiring_.meter, margins_.contains(v) ? Part::margins : Part::waiting);
      it->second.movement.finish();
    }
    accumulate(state, v, std::move(it->second.gradient));
  }
  auto terms = std::move(state.gradients[static_cast<std::size_t>(v)]);
  for (Slab& term : terms) term = covering(std::exchange(term, {}), boxes(v).made);
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
    if (terms.empty() || !step.kernel->takes_addend(i) || terms.back().box != boxes(step.output).made) continue;
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
  if (!merged.defined()) return zeros(box, graph_.shape({v}).channels, state.pass.options);
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
