// The reverse walk of a member: runtime/member_backward.cpp with memory in place of tensors.
#include "tessera/base/index.h"
#include "tessera/schedule/member_walk.h"

namespace tessera {
void MemberWalk::restore(MemberMemory& micro, int v) const {
  if (micro.values[index(v)].defined() || boxes(v).frame.empty()) return;
  if (micro.stored.contains(v)) {
    micro.values[index(v)] = piece(v, boxes(v).frame);
    wake_margins(micro, v);
    return;
  }
  if (stage_.program.producer[index(v)] < 0) return;
  const auto s = index(stage_.program.producer[index(v)]);
  if (!boxes(v).made.empty()) {
    for (const int input : steps()[s].inputs) restore(micro, input);
    wake_saved(micro, s);
  }
  make(micro, s, /*save=*/false);
  wake_margins(micro, v);
  if (!stage_.turns) micro.margins.erase(v);
}

void MemberWalk::begin_backward(MemberMemory& micro) const {
  expect_gradients(micro);
  const int loss = steps().back().output;
  if (loss + 1 == static_cast<int>(boxes_.size()) && !boxes(loss).owned.empty())
    micro.gradients[index(loss)].push_back(piece(loss, boxes(loss).frame));
}

bool MemberWalk::fill_wait(MemberMemory& micro) const {
  if (micro.deferred.empty()) return false;
  stage_.ledger.touch(workspace(steps()[micro.deferred.front().step]).weight_gradient);
  micro.deferred.pop_front();
  return true;
}

void MemberWalk::offer_gradient(MemberMemory& micro, std::size_t s, bool defer_weights) {
  const Step& step = steps()[s];
  wake_saved(micro, s);
  std::vector<SlabMemory> gradients = take_gradients(micro, step, defer_weights);
  if (gradients.empty() && step.agreement == Agreement::none) return;
  for (std::size_t i = 0; i < step.inputs.size(); ++i)
    if (step.needs_input[i]) restore(micro, step.inputs[i]);
  if (step.needs_output) restore(micro, step.output);
  if (has_weights(step) && !gradients.empty()) {
    if (defer_weights || waits_ || put_off_[s]) {
      MemberMemory::Deferred deferred{s, {}};
      for (const int v : step.inputs) deferred.held.push_back(micro.values[index(v)].memory);
      for (const SlabMemory& gradient : gradients) deferred.held.push_back(gradient.memory);
      deferred.held.push_back(micro.saved[s]);
      micro.deferred.push_back(std::move(deferred));
    } else {
      stage_.ledger.touch(workspace(step).weight_gradient);
    }
  }
  micro.halfway = std::make_unique<MemberMemory::Halfway>(MemberMemory::Halfway{.step = s});
  if (step.pointwise)
    first_pass(micro, step, std::move(gradients));
  else
    micro.halfway->gradients = std::move(gradients);
  const bool grouped = step.agreement == Agreement::norm ? norm_group_ : tile_group_;
  if (step.agreement != Agreement::none && grouped && !stage_.turns && !defer_weights) fill_wait(micro);
}

void MemberWalk::backward_step(MemberMemory& micro, std::size_t s, bool defer_weights) {
  const Step& step = steps()[s];
  if (const auto halfway = std::move(micro.halfway)) {
    if (halfway->away) {
      const auto back = [&](SlabMemory& piece) {
        if (!piece.defined() && !piece.box.empty()) wake(step.output, piece);
      };
      back(halfway->first);
      back(halfway->second);
      for (SlabMemory& gradient : halfway->gradients) back(gradient);
    }
    if (stage_.turns) {
      wake_saved(micro, s);
      for (std::size_t i = 0; i < step.inputs.size(); ++i)
        if (step.needs_input[i]) restore(micro, step.inputs[i]);
      if (step.needs_output) restore(micro, step.output);
    }
    std::vector<SlabMemory> terms;
    if (step.pointwise)
      terms = gradients_of_pointwise(micro, step, std::move(halfway->first), std::move(halfway->second));
    else
      terms = gradients_of(step, std::move(halfway->gradients));
    for (std::size_t i = 0; i < step.inputs.size(); ++i)
      if (step.inputs[i] != 0 && terms[i].defined()) accumulate(micro, step.inputs[i], std::move(terms[i]));
  }
  for (const int v : step.completes) send_back(micro, v);
  if (!defer_weights)
    while (micro.deferred.size() > most_put_off) fill_wait(micro);
  micro.saved[s].reset();
  micro.away_saved.erase(s);
  for (const int v : step.release_after_backward) {
    micro.values[index(v)].memory.reset();
    micro.margins.erase(v);
    micro.away_margins.erase(v);
    micro.stored.erase(v);
  }
}

std::vector<SlabMemory> MemberWalk::take_gradients(MemberMemory& micro, const Step& step, bool defer_weights) {
  const int v = step.output;
  wake_gradients(micro, v);
  for (auto [it, end] = micro.returning.equal_range(v); it != end; it = micro.returning.erase(it)) {
    if (!defer_weights) fill_wait(micro);
    accumulate(micro, v, std::move(it->second.gradient));
  }
  auto terms = std::move(micro.gradients[index(v)]);
  micro.gradients[index(v)].clear();
  const Box& made = boxes(v).made;
  if (made.empty()) return {};
  for (SlabMemory& term : terms) term = covering(v, std::move(term), made);
  if (terms.size() > 1 && !step.pointwise) {
    SlabMemory second = std::move(terms[1]);
    terms.pop_back();
    terms[0] = sum(v, std::move(terms[0]), std::move(second));
  }
  return terms;
}

void MemberWalk::first_pass(MemberMemory& micro, const Step& step, std::vector<SlabMemory> gradients) const {
  if (gradients.empty()) return;
  const Pointwise& p = *step.pointwise;
  const Box box = gradients[0].box;
  const bool relu = p.activation && p.activation->kind == ActivationKind::relu;
  const bool product = p.combine == Combine::product && p.terms.size() == 2;
  const bool simple = p.combine == Combine::sum && (!p.activation || relu);
  const bool own_mask = p.terms.size() == 1 && p.terms[0].norm >= 0 && !p.by_output;
  const bool write = gradients.size() > 1 || !simple || (relu && !own_mask);
  SlabMemory& g = micro.halfway->first;
  g = std::move(gradients[0]);
  gradients.erase(gradients.begin());
  const Memory read = g.memory;
  const bool fresh = write && read.use_count() > 2;
  if (fresh) g = piece(step.output, box);
  if (product && !p.spread) micro.halfway->second = piece(step.output, box);
}

std::vector<SlabMemory> MemberWalk::gradients_of_pointwise(MemberMemory& micro, const Step& step, SlabMemory g,
                                                           SlabMemory second) const {
  const Pointwise& p = *step.pointwise;
  std::vector<SlabMemory> out(p.terms.size());
  if (!g.defined()) return out;
  const Box box = g.box;
  const auto g_of = [&](std::size_t t) -> SlabMemory& { return t == 1 && second.defined() ? second : g; };
  std::vector<SlabMemory> addends(p.terms.size());
  for (std::size_t t = 0; t < p.terms.size(); ++t) {
    wake_gradients(micro, step.inputs[t]);
    auto& terms = micro.gradients[index(step.inputs[t])];
    if (p.terms[t].norm < 0 || terms.empty() || terms.back().box != box) continue;
    addends[t] = std::move(terms.back());
    terms.pop_back();
  }
  const auto small = [&](std::size_t t) { return t == 1 && p.spread; };
  std::size_t readers = 0;
  for (std::size_t t = 0; t < p.terms.size(); ++t) {
    const bool factor = t == 0 && p.spread && p.combine == Combine::product;
    const int v = step.inputs[t];
    if (small(t))
      out[t] = piece(v, intersect(input_box(stage_.graph, step, box, t), stage_.graph.shape({v}).box(box.batch())));
    else if (p.terms[t].norm < 0 && !factor)
      out[t] = g_of(t);
    else if (&g_of(t) == &g)
      ++readers;
  }
  for (std::size_t t = 0; t < p.terms.size(); ++t) {
    if (out[t].defined()) continue;
    SlabMemory mine = g_of(t);
    if (&g_of(t) != &g || --readers == 0) g_of(t) = {};
    if (addends[t].defined() && addends[t].exclusive() && addends[t].dense())
      out[t] = std::move(addends[t]);
    else if (mine.exclusive() && mine.dense())
      out[t] = std::move(mine);
    else
      out[t] = piece(step.output, box);
  }
  return out;
}

std::vector<SlabMemory> MemberWalk::gradients_of(const Step& step, std::vector<SlabMemory> gradients) const {
  std::vector<SlabMemory> out(step.inputs.size());
  const Workspace work = workspace(step);
  stage_.ledger.touch(work.input_gradient);
  for (std::size_t i = 0; i < out.size(); ++i) {
    const int v = step.inputs[i];
    if (v == 0) continue;
    const Boxes& in = boxes(v);
    Box box = in.owned;
    if (!step.reduces) {
      if (gradients.empty()) continue;
      const Box& of = gradients[0].box;
      box = work.input_gradient_box && of == boxes(step.output).made
                ? *work.input_gradient_box
                : intersect(input_box(stage_.graph, step, of, i), stage_.graph.shape({v}).box(in.held.batch()));
    }
    if (box.empty()) continue;
    if (work.shares_input && !gradients.empty())
      out[i] = SlabMemory{gradients[0].memory, box};
    else
      out[i] = piece(v, box);
    stage_.ledger.touch(work.input_gradient);
  }
  return out;
}

SlabMemory MemberWalk::covering(int v, SlabMemory term, const Box& box) const {
  if (term.box.contains(box)) return std::move(term).part(box);
  return piece(v, box);  // `term` lives until here
}

SlabMemory MemberWalk::sum(int v, SlabMemory a, SlabMemory b) const {
  const Box box = hull(a.box, b.box);
  const auto usable = [&](const SlabMemory& p) { return p.box == box && p.exclusive(); };
  if (usable(a)) return a;
  if (usable(b)) return b;
  return piece(v, box);
}

void MemberWalk::accumulate(MemberMemory& micro, int v, SlabMemory term) const {
  wake_gradients(micro, v);
  auto& terms = micro.gradients[index(v)];
  terms.push_back(std::move(term));
  if (terms.size() <= 2) return;
  SlabMemory last = std::move(terms[2]);
  terms.pop_back();
  terms[1] = sum(v, std::move(terms[1]), std::move(last));
}

SlabMemory MemberWalk::take_merged(MemberMemory& micro, int v, const Box& inside, const Box& box) const {
  wake_gradients(micro, v);
  auto& terms = micro.gradients[index(v)];
  SlabMemory merged;
  std::vector<SlabMemory> rest;
  for (SlabMemory& term : terms) {
    if (inside.contains(intersect(term.box, stage_.graph.shape({v}).box(term.box.batch()))) && merged.defined())
      rest.push_back(std::move(term));
    else if (merged.defined())
      merged = sum(v, std::move(merged), std::move(term));
    else
      merged = std::move(term);
  }
  terms = std::move(rest);
  return merged.defined() ? covering(v, std::move(merged), box) : piece(v, box);
}

void MemberWalk::send_back(MemberMemory& micro, int v) {
  const auto& [owned, made, held, frame] = boxes(v);
  if (const auto margin = margins_.find(v); margin != margins_.end()) {
    SlabMemory gradient = take_merged(micro, v, made, held);
    if (!gradient.exclusive()) gradient = piece(v, held);
    MemberMemory::Returning returning{std::move(gradient).part(made), true, {}};
    for (const double strip : margin->second.sent) returning.staged.push_back(stage_.buffers.take(strip));
    if (stage_.apart())
      send_copies(margin->second.received);
    else
      message(margin->second.received);
    micro.returning.emplace(v, std::move(returning));
  }
  if (const auto arrival = arrivals_.find(v); arrival != arrivals_.end() && !held.empty()) {
    const SlabMemory gradient = take_merged(micro, v, made, held);
    message(arrival->second.received);
    if (stage_.turns) outgoing_.push_back(gradient.memory);
  }
}

void MemberWalk::message(const std::vector<double>& strips, const std::vector<double>& more) const {
  if (!stage_.options.packed) return;
  std::vector<Memory> wires;
  for (const auto* list : {&strips, &more})
    for (const double strip : *list) wires.push_back(stage_.buffers.take(strip));
}

void MemberWalk::send_copies(const std::vector<double>& strips) {
  for (const double strip : strips) sent_.push_back(stage_.buffers.take(strip));
}

}  // namespace tessera
