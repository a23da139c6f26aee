#include "tessera/runtime/member.h"

#include <algorithm>

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

bool looks_beyond(const Graph& graph, const Layout& layout, const Plan::Place& place, const Step& step,
                  std::size_t input) {
  const auto m = static_cast<std::size_t>(place.member);
  const int v = step.inputs[input];
  const Box& out = layout.at(place.stage, step.output).made[m];
  const Box whole = graph.shape({v}).box(out.batch());
  const Box need = step.reduces || out.empty() ? Box{} : intersect(input_box(graph, step, out, input), whole);
  const Box& made = layout.at(place.stage, v).made[m];
  return made.empty() || !made.contains(need);
}

Member::Member(const StageWork& work, const Plan::Place& place, Communicator* places, std::size_t ordinal)
    : work_(work), place_(place), places_(places), ordinal_(ordinal), boxes_(work.graph.nodes().size()) {
  const auto& [direction, stage, member] = place;
  const auto m = static_cast<std::size_t>(member);
  for (int v = 0; v < static_cast<int>(boxes_.size()); ++v) {
    const ValueLayout& layout = work.layout.at(stage, v);
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
  for (const Step& step : steps()) {
    std::vector<bool> waits;
    for (std::size_t i = 0; i < step.inputs.size(); ++i)
      waits.push_back(looks_beyond(work.graph, work.layout, place, step, i));
    waits_.push_back(std::move(waits));
  }
  const Rank me{work.plan.number_of(direction, stage, member)};
  for (int t = 0; t < static_cast<int>(work.layout.transfers.size()); ++t) {
    const Transfer& transfer = work.layout.transfers[static_cast<std::size_t>(t)];
    if (transfer.from != stage && transfer.to != stage) continue;
    const Link link{Exchange(work.layout.have(work.plan, transfer, direction),
                             work.layout.need(work.plan, transfer, direction), me),
                    t};
    if (transfer.from == transfer.to)
      margins_.emplace(transfer.value, link);
    else if (transfer.to == stage)
      arrivals_.emplace(transfer.value, link);
    else
      departures_.emplace(transfer.value, link);
  }
  put_off_ = put_off_for_others(
      steps(), most_put_off_for_others(work.plan, work.turns),
      [&](std::size_t s) { return work_.kernels[s]->has_weights(); }, [&](int v) { return arrivals_.contains(v); });
}

std::set<Rank> Member::peers() const {
  std::set<Rank> out;
  const auto add = [&](const auto& links) {
    for (const auto& [v, link] : links) out.merge(link.exchange.peers());
  };
  add(margins_);
  add(arrivals_);
  add(departures_);
  return out;
}

Tag Member::tag(const MemberState& state, const Link& link, bool backward) const {
  return make_tag({.movement = link.transfer,
                   .micro = state.micro,
                   .upward = place_.direction == Direction::up,
                   .backward = backward});
}

void Member::expect_values(MemberState& state, int micro, const at::TensorOptions& options) {
  if (!state.values.empty()) return;
  state.micro = micro;
  state.pass.options = options;
  state.values.assign(work_.graph.nodes().size(), {});
  state.gradients.assign(work_.graph.nodes().size(), {});
  state.saved.assign(steps().size(), {});
  for (const auto& [v, link] : arrivals_) {
    if (boxes(v).held.empty()) continue;
    value(state, v) = new_frame(v, options);
    state.arriving[v] =
        link.exchange.start(*places_, {}, data_in(value(state, v), boxes(v).held), tag(state, link, false));
  }
}

void Member::begin_forward(MemberState& state, const at::Tensor& images, PassInfo pass) {
  state.pass = std::move(pass);
  if (images.defined() && !image_box().empty())
    make_framed(state, 0, [&](const Slab&) { return Slab{images, image_box()}; });
}

void Member::end_forward(MemberState& state) const {
  while (!state.arriving.empty()) settle(state, state.arriving.begin()->first);
}

void Member::settle_inputs(MemberState& state, std::size_t s) const {
  const Step& step = steps()[s];
  for (std::size_t i = 0; i < step.inputs.size(); ++i) {
    const int v = step.inputs[i];
    if (work_.store) restore(state, v);
    if (waits_[s][i]) settle(state, v);
  }
  wake_saved(state, s);
}

Offer Member::offer(MemberState& state, std::size_t s) {
  const Step& step = steps()[s];
  settle_inputs(state, s);
  const auto inputs = gather(state, step);
  return work_.kernels[s]->offer({inputs, boxes(step.output).made, owned_box(step), state.pass, state.saved[s]});
}

void Member::forward_step(MemberState& state, std::size_t s, at::Tensor agreed, int phase) {
  const Step& step = steps()[s];
  if (places_) places_->progress();
  if (runs(step)) {
    settle_inputs(state, s);
    const auto inputs = gather(state, step);
    const Boxes& out = boxes(step.output);
    ForwardArgs args{inputs, out.made, owned_box(step), state.pass, state.saved[s]};
    args.agreed = std::move(agreed);
    if (!out.inside.empty()) {
      args.inside = out.inside;
      args.edges_ready = [&] { exchange_margin(state, step.output); };
    }
    make_framed(state, step.output, [&](const Slab& into) {
      args.into = into;
      return work_.kernels[s]->forward(args);
    });
  } else if (!boxes(step.output).frame.empty()) {
    value(state, step.output) = new_frame(step.output, state.pass.options);  // others make all that is held of it
  }
  exchange_margin(state, step.output);
  send_away(state, step.output);
  const bool evaluating = state.pass.evaluating;
  if (evaluating) state.saved[s].clear();
  for (int v : evaluating ? step.release_in_evaluation : step.release_after_forward)
    if (!evaluating || v != work_.kept) release(state, v);
  if (work_.store == nullptr || evaluating) return;
  for (int v : step.release_in_evaluation) rest(state, v, phase);  // what only backward still wants
}

Slab Member::owned(MemberState& state, int v) const {
  if (state.stored.contains(v)) restore(state, v);
  return narrowed(state.values[static_cast<std::size_t>(v)], boxes(v).owned);
}

Slab Member::new_frame(int v, const at::TensorOptions& options) const {
  const Shape& shape = work_.graph.shape({v});
  const Box& frame = boxes(v).frame;
  Slab slab = empty_slab(frame, shape.channels, options);
  for (const Box& outside : difference(frame, shape.box(frame.batch()))) narrowed(slab, outside).data.zero_();
  return slab;
}

template <class Make>
void Member::make_framed(MemberState& state, int v, const Make& make) const {
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

void Member::restore(MemberState& state, int v) const {
  if (value(state, v).defined() || boxes(v).frame.empty()) return;
  if (const auto stored = state.stored.find(v); stored != state.stored.end()) {
    value(state, v) = {stored->second->get(), boxes(v).frame};
    if (work_.apart()) fill_margins(state, v);
    return;
  }
  const auto s = static_cast<std::size_t>(work_.program.producer[static_cast<std::size_t>(v)]);
  const Step& step = steps()[s];
  if (boxes(v).made.empty()) {
    value(state, v) = new_frame(v, state.pass.options);
  } else {
    for (int input : step.inputs) restore(state, input);
    wake_saved(state, s);
    const auto inputs = gather(state, step);
    make_framed(state, v, [&](const Slab& into) {
      return work_.kernels[s]->recompute({inputs, boxes(v).made, owned_box(step), state.pass, state.saved[s], into});
    });
  }
  fill_margins(state, v);
  if (!work_.turns) state.margins.erase(v);  // with turns it may be made once more
}

void Member::fill_margins(MemberState& state, int v) const {
  const auto margin = state.margins.find(v);
  if (margin == state.margins.end() || state.arriving.contains(v)) return;
  for (auto [it, end] = state.away_margins.equal_range(v); it != end; it = state.away_margins.erase(it))
    *it->second.place = it->second.stored->get();
  for (const Slab& strip : margin->second) narrowed(value(state, v), strip.box).data.copy_(strip.data);
}

void Member::forget(MemberState& state, int v) const {
  value(state, v).release();
  state.away_margins.erase(v);
  state.margins.erase(v);
  state.stored.erase(v);
}

void Member::prefetch(MemberState& state, int v) const {
  if (value(state, v).defined() || boxes(v).frame.empty()) return;
  if (const auto stored = state.stored.find(v); stored != state.stored.end()) return stored->second->prefetch();
  const int s = work_.program.producer[static_cast<std::size_t>(v)];
  if (s < 0 || boxes(v).made.empty()) return;
  for (const int input : steps()[static_cast<std::size_t>(s)].inputs) prefetch(state, input);
}

void Member::look_ahead(MemberState& state, int phase) const {
  const Phases& phases = work_.waits->phases();
  if (phase < phases.first_of_backward()) {
    const Phase& p = phases.forward[static_cast<std::size_t>(phase)];
    for (std::size_t s = p.first; s < p.end + (p.offers ? 1 : 0); ++s)
      for (const int v : steps()[s].inputs)
        if (state.stored.contains(v) || work_.program.light_in_forward[static_cast<std::size_t>(v)]) prefetch(state, v);
    return;
  }
  const Phase& p = phases.backward[static_cast<std::size_t>(phase - phases.first_of_backward())];
  const auto prefetch_all = [](auto& away, const auto& key) {
    for (auto [it, end] = away.equal_range(key); it != end; ++it) it->second.stored->prefetch();
  };
  if (state.halfway)
    for (const auto& away : state.halfway->away) away.stored->prefetch();
  for (std::size_t s = p.end; s-- > p.first - (p.offers ? 1 : 0);) {
    const Step& step = steps()[s];
    for (std::size_t i = 0; i < step.inputs.size(); ++i)
      if (step.needs_input[i]) prefetch(state, step.inputs[i]);
    if (step.needs_output) prefetch(state, step.output);
    prefetch_all(state.away_saved, s);
    prefetch_all(state.away_gradients, step.output);
    for (const int v : step.inputs) prefetch_all(state.away_gradients, v);
  }
}

bool Member::stays(Idle thing, int id, int phase, const at::Tensor& data) const {
  return !data.defined() || data.nbytes() < work_.store->smallest() || work_.waits->stays(thing, id, phase, ordinal_);
}

void Member::rest(MemberState& state, int v, int phase) const {
  Slab& slab = value(state, v);
  if (is_loss(v) || !slab.defined()) return;
  if (work_.waits->over(v, phase)) return slab.release();
  if (stays(Idle::value, v, phase, slab.data)) return;
  if (state.arriving.contains(v)) {
    if (arrivals_.contains(v)) return;  // it is still being written to
    if (!work_.apart()) settle(state, v);
  }
  const bool again = work_.waits->let_go(v, phase) && !state.pass.evaluating;  // which keeps nothing to make it from
  if (!again && !state.stored.contains(v)) state.stored[v] = work_.store->put(slab.data);
  slab.release();
}

void Member::put_down(MemberState& state, int phase) const {
  for (int v = 0; v < static_cast<int>(state.values.size()); ++v) rest(state, v, phase);
  const auto put = [&](at::Tensor& data) {
    MemberState::Away away{&data, work_.store->put(data)};
    data.reset();
    return away;
  };
  if (work_.apart())
    for (auto& [v, strips] : state.margins)
      if (!value(state, v).defined() && !state.arriving.contains(v))
        for (Slab& strip : strips)
          if (strip.defined() && strip.data.nbytes() >= work_.store->smallest())
            state.away_margins.emplace(v, put(strip.data));
  for (std::size_t s = 0; s < state.saved.size(); ++s)
    for (at::Tensor& data : state.saved[s])
      if (!stays(Idle::saved, static_cast<int>(s), phase, data)) state.away_saved.emplace(s, put(data));
  for (int v = 1; v < static_cast<int>(state.gradients.size()); ++v)
    for (Slab& term : state.gradients[static_cast<std::size_t>(v)])
      if (!stays(Idle::gradient, v, phase, term.data)) state.away_gradients.emplace(v, put(term.data));
  for (auto& [v, returning] : state.returning)
    if (returning.margin && !stays(Idle::gradient, v, phase, returning.gradient.data))
      state.away_gradients.emplace(v, put(returning.gradient.data));
  if (!state.halfway || !work_.turns) return;
  // Inputs and output are asked for again; they may have left.
  for (Slab& input : state.halfway->inputs) input.release();
  BackwardArgs& args = state.halfway->args;
  args.output.release();
  const int v = steps()[state.halfway->step].output;
  constexpr std::size_t worth_it = 4096;
  for (Slab& gradient : args.gradients)
    if (!stays(Idle::gradient, v, phase, gradient.data)) state.halfway->away.push_back(put(gradient.data));
  for (at::Tensor& data : args.between)
    if (data.defined() && data.nbytes() >= worth_it && !stays(Idle::gradient, v, phase, data))
      state.halfway->away.push_back(put(data));
}

void Member::wake_gradients(MemberState& state, int v) const {
  for (auto [it, end] = state.away_gradients.equal_range(v); it != end; it = state.away_gradients.erase(it))
    *it->second.place = it->second.stored->get();
}

void Member::wake_saved(MemberState& state, std::size_t s) const {
  for (auto [it, end] = state.away_saved.equal_range(s); it != end; it = state.away_saved.erase(it))
    *it->second.place = it->second.stored->get();
}

void Member::exchange_margin(MemberState& state, int v) const {
  const auto margin = margins_.find(v);
  if (margin == margins_.end() || state.arriving.contains(v)) return;
  const Meter::Timed timed(work_.meter, Part::margins);
  const Slab& slab = value(state, v);
  if (work_.apart()) {
    std::vector<at::Tensor> strips;
    for (const Box& box : margin->second.exchange.received_boxes()) {
      state.margins[v].push_back(empty_slab(box, work_.graph.shape({v}).channels, state.pass.options));
      strips.push_back(state.margins[v].back().data);
    }
    state.arriving[v] = margin->second.exchange.start_apart(*places_, data_in(slab, boxes(v).owned), strips,
                                                            tag(state, margin->second, false));
    return;
  }
  state.arriving[v] = margin->second.exchange.start(*places_, data_in(slab, boxes(v).owned),
                                                    data_in(slab, boxes(v).held), tag(state, margin->second, false));
}

void Member::send_away(MemberState& state, int v) {
  const Meter::Timed timed(work_.meter, Part::transfers);
  for (auto [link, end] = departures_.equal_range(v); link != end; ++link)
    outbox_.push_back(link->second.exchange.start(*places_, data_in(value(state, v), boxes(v).owned), {},
                                                  tag(state, link->second, false)));
}

void Member::settle(MemberState& state, int v) const {
  const auto found = state.arriving.find(v);
  if (found == state.arriving.end()) return;
  const Meter::Timed timed(work_.meter, arrivals_.contains(v) ? Part::waiting : Part::margins);
  found->second.finish();
  state.arriving.erase(found);
  if (work_.apart() && value(state, v).defined()) fill_margins(state, v);
}

void Member::release(MemberState& state, int v) const {
  settle(state, v);
  Slab& slab = value(state, v);
  const auto& [owned, made, held, frame, inside] = boxes(v);
  const bool wanted_again =
      work_.program.keep[static_cast<std::size_t>(v)] == Keep::recomputed && !state.pass.evaluating;
  if (slab.defined() && wanted_again && margins_.contains(v) && !work_.apart())
    for (const Box& box : difference(held, made))
      state.margins[v].push_back({narrowed(slab, box).data.clone(at::MemoryFormat::ChannelsLast), box});
  if (!wanted_again) {
    state.away_margins.erase(v);
    state.margins.erase(v);
  }
  state.stored.erase(v);
  slab.release();
}

std::vector<Slab> Member::gather(const MemberState& state, const Step& step) const {
  std::vector<Slab> inputs;
  for (int v : step.inputs) inputs.push_back(state.values[static_cast<std::size_t>(v)]);
  return inputs;
}

}  // namespace tessera
