#include "tessera/runtime/executor.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "tessera/runtime/out_of_memory.h"

namespace tessera {
namespace {

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

}  // namespace

Executor::Executor(const Graph& graph, const Parameters& parameters, const Wiring& wiring, Recompute recompute)
    : graph_(graph),
      wiring_(wiring),
      program_(stage_program(graph, wiring.plan, wiring.layout, wiring.place.stage, recompute)),
      boxes_(graph.nodes().size()) {
  for (const Step& step : program_.steps)
    kernels_.push_back(
        kernels().make({graph, step, [&](const Node& node) { return parameters.of(node); }, parameters.activations()}));
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
    const Box& out = boxes(step.output).made;
    std::vector<bool> waits;
    for (std::size_t i = 0; i < step.inputs.size(); ++i) {
      const Box whole = graph.shape({step.inputs[i]}).box(out.batch());
      const Box need = step.reduces || out.empty() ? Box{} : intersect(input_box(graph, step, out, i), whole);
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

at::Tensor Executor::agree(const Step& step, const Offer& offer, const std::function<void()>& meanwhile) const {
  Communicator* const group = group_of(step);
  if (group == nullptr || !offer.data.defined()) return agreed_alone(offer);
  const bool gather = offer.how == Offer::How::gather;
  at::Tensor result;
  if (gather) {
    auto sizes = offer.data.sizes().vec();
    sizes.insert(sizes.begin(), group->size());
    result = at::empty(sizes, offer.data.options());
  } else {
    result = offer.data.clone(at::MemoryFormat::Contiguous);  // the rank's own part is still wanted
  }
  Pending pending = gather ? group->all_gather(offer.data, result) : group->all_reduce(result);
  if (meanwhile) meanwhile();
  const Meter::Timed timed(wiring_.meter, Part::norms);
  pending.wait();
  return result;
}

Box Executor::loss_box() const {
  const int loss = static_cast<int>(graph_.nodes().size()) - 1;
  return program_.steps.back().output == loss ? boxes(loss).owned : Box{};
}

std::set<Rank> Executor::peers() const {
  std::set<Rank> out;
  const auto add = [&](const auto& links) {
    for (const auto& [v, link] : links) out.merge(link.exchange.peers());
  };
  add(margins_);
  add(arrivals_);
  add(departures_);
  return out;
}

Tag Executor::tag(const MicroState& state, const Link& link, bool backward) const {
  return make_tag({.movement = link.transfer,
                   .micro = state.micro,
                   .upward = wiring_.place.direction == Direction::up,
                   .backward = backward});
}

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
  for (std::size_t s = 0; s < program_.steps.size(); ++s)
    naming_node(program_.steps[s].name, [&] { forward_step(state, s); });
  while (!state.arriving.empty()) settle(state, state.arriving.begin()->first);
  if (!makes_loss()) return {};
  return value(state, program_.steps.back().output).data.sum(at::kDouble);
}

void Executor::forward_step(MicroState& state, std::size_t s) {
  const Step& step = program_.steps[s];
  if (wiring_.pipeline) wiring_.pipeline->progress();
  if (runs(step)) {
    for (std::size_t i = 0; i < step.inputs.size(); ++i)
      if (waits_[s][i]) settle(state, step.inputs[i]);
    const auto inputs = gather(state, step);
    const Boxes& out = boxes(step.output);
    ForwardArgs args{inputs, out.made, owned_box(step), state.pass, state.saved[s]};
    if (step.agreement != Agreement::none) args.agreed = agree(step, kernels_[s]->offer(args));
    if (!out.inside.empty()) {
      args.inside = out.inside;
      args.edges_ready = [&] { exchange_margin(state, step.output); };
    }
    make_framed(state, step.output, [&](const Slab& into) {
      args.into = into;
      return kernels_[s]->forward(args);
    });
  } else if (!boxes(step.output).frame.empty()) {
    value(state, step.output) = new_frame(step.output, state.pass.options);  // others make all that is held of it
  }
  exchange_margin(state, step.output);
  send_away(state, step.output);
  const bool evaluating = state.pass.evaluating;
  if (evaluating) state.saved[s].clear();
  for (int v : evaluating ? step.release_in_evaluation : step.release_after_forward) release(state, v);
}

void Executor::keep_for_answer(Value v) {
  ensure(program_.producer[static_cast<std::size_t>(v.id)] >= 0, "value ", v.id, " is not made by this stage");
  kept_ = v.id;
  for (Step& step : program_.steps) std::erase(step.release_in_evaluation, kept_);
}

Executor::Answer Executor::take_answer(MicroState& state) {
  Answer answer;
  const auto owned = [&](int v) { return narrowed(value(state, v), boxes(v).owned); };
  if (makes_loss()) {
    const Step& last = program_.steps.back();
    answer.logits = owned(last.inputs[0]);
    answer.losses = owned(last.output);
  }
  if (kept_ >= 0 && !boxes(kept_).owned.empty()) answer.kept = owned(kept_);
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
  if (made == boxes(v).frame || boxes(v).frame.empty()) {
    value(state, v) = make(Slab{});
    return;
  }
  value(state, v) = new_frame(v, state.pass.options);
  if (made.empty()) {
    make(Slab{});
    return;
  }
  const Slab into = narrowed(value(state, v), made), result = make(into);
  if (result.data.data_ptr() != into.data.data_ptr()) into.data.copy_(result.data);
}

void Executor::restore(MicroState& state, int v) {
  if (value(state, v).defined() || boxes(v).frame.empty()) return;
  const auto s = static_cast<std::size_t>(program_.producer[static_cast<std::size_t>(v)]);
  const Step& step = program_.steps[s];
  if (boxes(v).made.empty()) {
    value(state, v) = new_frame(v, state.pass.options);
  } else {
    for (int input : step.inputs) restore(state, input);
    const auto inputs = gather(state, step);
    make_framed(state, v, [&](const Slab& into) {
      return kernels_[s]->recompute({inputs, boxes(v).made, owned_box(step), state.pass, state.saved[s], into});
    });
  }
  if (const auto margin = state.margins.find(v); margin != state.margins.end()) {
    for (const Slab& strip : margin->second) narrowed(value(state, v), strip.box).data.copy_(strip.data);
    state.margins.erase(margin);
  }
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
  slab.release();
}

std::vector<Slab> Executor::gather(const MicroState& state, const Step& step) const {
  std::vector<Slab> inputs;
  for (int v : step.inputs) inputs.push_back(state.values[static_cast<std::size_t>(v)]);
  return inputs;
}

}  // namespace tessera
