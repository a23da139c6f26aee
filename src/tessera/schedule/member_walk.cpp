#include "tessera/schedule/member_walk.h"

#include <cmath>

#include "tessera/base/index.h"

namespace tessera {
Memory Buffers::take(double bytes) {
  constexpr double page = 4096;
  auto found = free_->lower_bound(bytes);
  double size = 0;
  if (found != free_->end() && *found <= std::max(page, 2 * bytes)) {
    size = *found;
    free_->erase(found);
  } else {
    size = std::ceil(bytes / page) * page;
    ledger_.add(size);
  }
  return {static_cast<const void*>(this), [free = free_, size](const void*) { free->insert(size); }};
}

MemberWalk::MemberWalk(const StageMemory& stage, const Plan::Place& place, std::size_t ordinal)
    : stage_(stage), ordinal_(ordinal), boxes_(stage.graph.nodes().size()) {
  const Plan& plan = stage.plan;
  const auto m = index(place.member);
  for (std::size_t v = 0; v < boxes_.size(); ++v) {
    const ValueLayout& value = stage.layout.at(place.stage, static_cast<int>(v));
    if (value.used()) boxes_[v] = {value.owned[m], value.made[m], value.held[m], value.frame[m]};
  }
  const int me = plan.number_of(place.direction, place.stage, place.member);
  for (const Transfer& t : stage.layout.transfers) {
    if (t.from != place.stage && t.to != place.stage) continue;
    const auto have = stage.layout.have(plan, t, place.direction).boxes;
    const auto need = stage.layout.need(plan, t, place.direction);
    Strips strips;
    for (std::size_t peer = 0; peer < have.size(); ++peer) {
      if (static_cast<int>(peer) == me) continue;
      const Box out = intersect(have[index(me)], need[peer]), in = intersect(have[peer], need[index(me)]);
      if (!out.empty()) strips.sent.push_back(bytes(t.value, out));
      if (!in.empty()) strips.received.push_back(bytes(t.value, in));
    }
    (t.from == t.to ? margins_ : t.to == place.stage ? arrivals_ : departures_).emplace(t.value, strips);
  }
  const Stage& s = plan.stages[index(place.stage)];
  const bool alone = s.ranks.size() == 1;
  norm_group_ =
      plan.batch_norm != NormScope::local && (!alone || (plan.batch_norm == NormScope::global && plan.replicas > 1));
  tile_group_ = !alone && static_cast<std::int64_t>(s.ranks.size()) > s.batch_ways;
  waits_ = plan.ranks() > 1 && !stage.turns && (!margins_.empty() || norm_group_);
  put_off_ = put_off_for_others(
      steps(), most_put_off_for_others(plan, stage.turns), [&](std::size_t i) { return has_weights(steps()[i]); },
      [&](int v) { return arrivals_.contains(v); });
}

Memory MemberWalk::take(double bytes) const {
  Ledger& ledger = stage_.ledger;
  ledger.add(bytes);
  return {static_cast<const void*>(this), [&ledger, bytes](const void*) { ledger.remove(bytes); }};
}

Workspace MemberWalk::workspace(const Step& step) const {
  if (step.pointwise) return {};
  const Node& node = stage_.graph.node({step.node});
  const Box& out = boxes(step.output).made;
  if (stage_.options.workspace && !out.empty())
    if (const auto known = stage_.options.workspace(step, out, boxes(step.inputs[0]).frame, stage_.threads))
      return *known;
  return node.op->workspace(stage_.graph.input_shapes(node), out, stage_.options.element_bytes);
}

bool MemberWalk::has_weights(const Step& step) const {
  if (step.pointwise) return false;
  const auto& specs = stage_.graph.node({step.node}).parameters;
  return std::any_of(specs.begin(), specs.end(), [](const auto& spec) { return spec.trainable; });
}

void MemberWalk::expect_values(MemberMemory& micro) const {
  if (micro.expects_values) return;
  micro.expects_values = true;
  micro.values.assign(boxes_.size(), {});
  micro.gradients.assign(boxes_.size(), {});
  micro.saved.assign(steps().size(), {});
  for (const auto& [v, strips] : arrivals_)
    if (!boxes(v).held.empty()) micro.values[index(v)] = piece(v, boxes(v).frame);
}

void MemberWalk::expect_gradients(MemberMemory& micro) const {
  if (micro.expects_gradients) return;
  micro.expects_gradients = true;
  for (const auto& [v, strips] : departures_)
    if (!boxes(v).owned.empty())
      micro.returning.emplace(v, MemberMemory::Returning{piece(v, boxes(v).owned), false, {}});
}

// ---- Forward ----

void MemberWalk::begin_forward(MemberMemory& micro) const {
  // Images that need no margin are used where they were read.
  const bool read_in_place = boxes(0).held == boxes(0).frame && !stage_.turns;
  if (!boxes(0).held.empty() && !read_in_place) micro.values[0] = piece(0, boxes(0).frame);
}

void MemberWalk::bring_inputs(MemberMemory& micro, const Step& step) const {
  for (const int v : step.inputs) {
    if (stage_.options.store) restore(micro, v);
    micro.arriving.erase(v);
  }
}

void MemberWalk::offer(MemberMemory& micro, std::size_t s) const {
  bring_inputs(micro, steps()[s]);
  wake_saved(micro, s);
}

void MemberWalk::forward_step(MemberMemory& micro, std::size_t s, int phase) {
  const Step& step = steps()[s];
  const int v = step.output;
  if (runs(step)) offer(micro, s);
  if (runs(step) || !boxes(v).frame.empty()) make(micro, s, /*save=*/true);
  exchange_margin(micro, v);
  // Whoever gets it has posted its receive: it waits here for the other members at most.
  for (auto [it, end] = departures_.equal_range(v); it != end; ++it) {
    message(it->second.sent);
    if (stage_.turns && !it->second.sent.empty()) outgoing_.push_back(micro.values[index(v)].memory);
  }
  if (stage_.options.evaluating) {
    micro.saved[s].reset();
    for (const int done : step.release_in_evaluation) release(micro, done);
    return;
  }
  for (const int done : step.release_after_forward) release(micro, done);
  if (stage_.options.store)
    for (const int done : step.release_in_evaluation) rest(micro, done, phase);
}

void MemberWalk::exchange_margin(MemberMemory& micro, int v) {
  const auto margin = margins_.find(v);
  if (margin == margins_.end()) return;
  if (!stage_.apart()) return message(margin->second.sent, margin->second.received);
  micro.margins[v] = take(received(v));
  micro.arriving.insert(v);
  send_copies(margin->second.sent);
}

double MemberWalk::received(int v) const {
  double strips = 0;
  for (const double strip : margins_.find(v)->second.received) strips += strip;
  return strips;
}

void MemberWalk::wake_margins(MemberMemory& micro, int v) const {
  if (micro.away_margins.erase(v) > 0) micro.margins[v] = take(received(v));
}

// The output of a step, with what it saves for backward.
void MemberWalk::make(MemberMemory& micro, std::size_t s, bool save) const {
  const Step& step = steps()[s];
  const auto& [owned, made, held, frame] = boxes(step.output);
  const Workspace work = workspace(step);
  const Memory saved = work.saved > 0 && !made.empty() ? take(work.saved) : nullptr;
  if (work.shares_input && made == frame)
    micro.values[index(step.output)] = {micro.values[index(step.inputs[0])].memory, frame};
  else if (!frame.empty())
    micro.values[index(step.output)] = piece(step.output, frame);
  if (made.empty()) return;
  // Who cannot write into a part of the frame brings memory of its own.
  const bool apart = made != frame && !step.pointwise && !work.writes_in_place;
  stage_.ledger.touch(work.forward + (apart ? bytes(step.output, made) : 0));
  if (save) micro.saved[s] = saved;
}

void MemberWalk::release(MemberMemory& micro, int v) const {
  const auto& [owned, made, held, frame] = boxes(v);
  const bool again = stage_.program.keep[index(v)] == Keep::recomputed && !stage_.options.evaluating;
  if (again && margins_.contains(v) && !stage_.apart()) {
    double strips = 0;
    for (const Box& box : difference(held, made)) strips += bytes(v, box);
    micro.margins[v] = take(strips);
  }
  micro.arriving.erase(v);
  if (!again) {
    micro.margins.erase(v);
    micro.away_margins.erase(v);
  }
  micro.stored.erase(v);
  micro.values[index(v)].memory.reset();
}

// ---- Turns ----

void MemberWalk::rest(MemberMemory& micro, int v, int phase) const {
  SlabMemory& piece = micro.values[index(v)];
  const bool loss = v + 1 == static_cast<int>(boxes_.size());
  if (loss || !piece.defined()) return;
  if (stage_.waits.over(v, phase)) return piece.memory.reset();
  if (stage_.waits.stays(Idle::value, v, phase, ordinal_)) return;
  if (!stage_.waits.let_go(v, phase) || stage_.options.evaluating) micro.stored.insert(v);
  piece.memory.reset();
}

void MemberWalk::put_down(MemberMemory& micro, int phase) const {
  for (int v = 0; v < static_cast<int>(micro.values.size()); ++v) rest(micro, v, phase);
  if (stage_.apart())
    for (auto& [v, strips] : micro.margins)
      if (strips && !micro.values[index(v)].defined() && !micro.arriving.contains(v)) {
        strips.reset();
        micro.away_margins.insert(v);
      }
  for (std::size_t s = 0; s < micro.saved.size(); ++s)
    if (micro.saved[s] && !stage_.waits.stays(Idle::saved, static_cast<int>(s), phase, ordinal_)) {
      micro.saved[s].reset();
      micro.away_saved.insert(s);
    }
  const auto put = [&](int v, SlabMemory& piece) {
    if (!piece.defined() || stage_.waits.stays(Idle::gradient, v, phase, ordinal_)) return false;
    if (!piece.dense()) stage_.ledger.touch(bytes(v, piece.box));  // a copy without gaps
    piece.memory.reset();
    piece.whole = {};
    return true;
  };
  for (int v = 1; v < static_cast<int>(micro.gradients.size()); ++v)
    for (SlabMemory& term : micro.gradients[index(v)])
      if (put(v, term)) micro.away_gradients.emplace(v, &term);
  for (auto& [v, returning] : micro.returning)
    if (returning.margin && put(v, returning.gradient)) micro.away_gradients.emplace(v, &returning.gradient);
  if (!micro.halfway || !stage_.turns) return;
  const int v = steps()[micro.halfway->step].output;
  for (SlabMemory* piece : {&micro.halfway->first, &micro.halfway->second}) micro.halfway->away |= put(v, *piece);
  for (SlabMemory& gradient : micro.halfway->gradients) micro.halfway->away |= put(v, gradient);
}

// What comes while another member is at work.
void MemberWalk::look_ahead(MemberMemory& micro, int phase) const {
  if (!stage_.options.store_prefetches) return;
  const Phases& phases = stage_.waits.phases();
  if (phase < phases.first_of_backward()) {
    const Phase& p = phases.forward[index(phase)];
    for (std::size_t s = p.first; s < p.end + (p.offers ? 1 : 0); ++s) bring_inputs(micro, steps()[s]);
    return;
  }
  const Phase& p = phases.backward[index(phase - phases.first_of_backward())];
  for (std::size_t s = p.end; s-- > p.first - (p.offers ? 1 : 0);) {
    const Step& step = steps()[s];
    for (std::size_t i = 0; i < step.inputs.size(); ++i)
      if (step.needs_input[i] && micro.stored.contains(step.inputs[i])) restore(micro, step.inputs[i]);
    if (step.needs_output && micro.stored.contains(step.output)) restore(micro, step.output);
    wake_saved(micro, s);
    wake_gradients(micro, step.output);
    for (const int v : step.inputs) wake_gradients(micro, v);
  }
}

void MemberWalk::wake_gradients(MemberMemory& micro, int v) const {
  for (auto [it, end] = micro.away_gradients.equal_range(v); it != end; it = micro.away_gradients.erase(it))
    wake(v, *it->second);
}

void MemberWalk::wake_saved(MemberMemory& micro, std::size_t s) const {
  if (micro.away_saved.erase(s) > 0) micro.saved[s] = take(workspace(steps()[s]).saved);
}

}  // namespace tessera
