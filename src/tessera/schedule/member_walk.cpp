#include "tessera/schedule/member_walk.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "tessera/base/index.h"

namespace tessera {
namespace {

// Stands for a Slab.
struct Piece {
  Memory memory;
  Box box;
  Box whole = {};  // of which the box is a part; empty: of nothing larger
  bool defined() const { return memory != nullptr; }
  bool exclusive() const { return memory.use_count() == 1; }
  bool dense() const {
    return whole.empty() ||
           (whole.width() == box.width() && (box.batch().size() == 1 || whole.height() == box.height()));
  }
  Piece part(const Box& part) && {
    Box outer = whole.empty() ? box : whole;
    return {std::move(memory), part, outer == part ? Box{} : outer};
  }
};

// Stands for a MicroState.
struct Micro {
  bool expects_values = false, expects_gradients = false;
  std::vector<Piece> values;
  std::vector<std::vector<Piece>> gradients;
  std::vector<Memory> saved;
  std::map<int, Memory> margins;
  struct Returning {
    Piece gradient;
    std::vector<Memory> staged;  // shares of others, until they are added
  };
  std::multimap<int, Returning> returning;
  struct Deferred {
    std::size_t step;
    std::vector<Memory> held;
  };
  std::deque<Deferred> deferred;
};

}  // namespace

Memory Buffers::take(double bytes) {
  constexpr double page = 4096;
  Buffer* best = nullptr;
  for (Buffer& buffer : all_)
    if (buffer.memory.use_count() == 1 && bytes <= buffer.bytes && buffer.bytes <= std::max(page, 2 * bytes) &&
        (best == nullptr || buffer.bytes < best->bytes))
      best = &buffer;
  if (best != nullptr) return best->memory;
  const double rounded = std::ceil(bytes / page) * page;
  ledger_.add(rounded);
  return all_.emplace_back(std::make_shared<char>(), rounded).memory;
}

class MemberWalk::Impl {
 public:
  Impl(const Graph& graph, const Plan& plan, const Layout& layout, const Plan::Place& place,
       const FootprintOptions& options, Ledger& ledger, Buffers& buffers)
      : graph_(graph),
        program_(stage_program(graph, plan, layout, place.stage, options.recompute)),
        options_(options),
        ledger_(ledger),
        buffers_(buffers),
        boxes_(graph.nodes().size()),
        micros_(index(static_cast<int>(plan.micros(place.direction)))) {
    const auto m = index(place.member);
    for (std::size_t v = 0; v < boxes_.size(); ++v) {
      const ValueLayout& value = layout.at(place.stage, static_cast<int>(v));
      if (value.used()) boxes_[v] = {value.owned[m], value.made[m], value.held[m], value.frame[m]};
    }
    const int me = plan.rank_of(place.direction, place.stage, place.member);
    for (const Transfer& t : layout.transfers) {
      if (t.from != place.stage && t.to != place.stage) continue;
      const auto have = layout.have(plan, t, place.direction).boxes;
      const auto need = layout.need(plan, t, place.direction);
      Strips strips;
      for (std::size_t peer = 0; peer < have.size(); ++peer) {
        if (static_cast<int>(peer) == me) continue;
        const Box out = intersect(have[index(me)], need[peer]), in = intersect(have[peer], need[index(me)]);
        if (!out.empty()) strips.sent.push_back(bytes(out, graph.shape({t.value}).channels));
        if (!in.empty()) strips.received.push_back(bytes(in, graph.shape({t.value}).channels));
      }
      (t.from == t.to ? margins_ : t.to == place.stage ? arrivals_ : departures_).emplace(t.value, strips);
    }
    const std::int64_t members = plan.stages[index(place.stage)].members();
    norm_group_ = plan.batch_norm != NormScope::local &&
                  (members > 1 || (plan.batch_norm == NormScope::global && plan.replicas > 1));
    tile_group_ = members > plan.stages[index(place.stage)].batch_ways;
    waits_ = plan.ranks() > 1 && (!margins_.empty() || norm_group_);
  }

  void expect(const Action& action) {
    Micro& micro = micros_[index(action.micro)];
    expect_values(micro);
    if (action.kind != Action::Kind::forward) expect_gradients(micro);
  }

  void run(const Action& action) {
    Micro& micro = micros_[index(action.micro)];
    switch (action.kind) {
      case Action::Kind::forward:
        return forward(micro);
      case Action::Kind::backward:
        return backward(micro, false);
      case Action::Kind::input_gradient:
        return backward(micro, true);
      case Action::Kind::weight_gradient:
        while (fill_wait(micro)) continue;
        micro = {};
        return;
      case Action::Kind::step:
        return;
    }
  }

 private:
  struct Boxes {
    Box owned, made, held, frame;
  };
  // Bytes of a movement's messages to and from others.
  struct Strips {
    std::vector<double> sent, received;  // one for each peer
  };

  const Boxes& boxes(int v) const { return boxes_[index(v)]; }
  double bytes(const Box& box, std::int64_t channels) const {
    return static_cast<double>(box.volume() * channels * options_.element_bytes);
  }
  Memory take(double bytes) const {
    ledger_.add(bytes);
    return {static_cast<const void*>(this), [this, bytes](const void*) { ledger_.remove(bytes); }};
  }
  Piece piece(int v, const Box& box) const { return {take(bytes(box, graph_.shape({v}).channels)), box}; }
  Workspace workspace(const Step& step) const {
    if (step.pointwise) return {};
    const Node& node = graph_.node({step.node});
    const Box& out = boxes(step.output).made;
    if (options_.workspace && !out.empty())
      if (const auto known = options_.workspace(step, out, boxes(step.inputs[0]).frame)) return *known;
    return node.op->workspace(graph_.input_shapes(node), out, options_.element_bytes);
  }
  bool runs(const Step& step) const { return step.agreement != Agreement::none || !boxes(step.output).made.empty(); }
  bool has_weights(const Step& step) const {
    if (step.pointwise) return false;
    const auto& specs = graph_.node({step.node}).parameters;
    return std::any_of(specs.begin(), specs.end(), [](const auto& spec) { return spec.trainable; });
  }

  void expect_values(Micro& micro) const {
    if (micro.expects_values) return;
    micro.expects_values = true;
    micro.values.assign(graph_.nodes().size(), {});
    micro.gradients.assign(graph_.nodes().size(), {});
    micro.saved.assign(program_.steps.size(), {});
    for (const auto& [v, strips] : arrivals_)
      if (!boxes(v).held.empty()) micro.values[index(v)] = piece(v, boxes(v).frame);
  }
  void expect_gradients(Micro& micro) const {
    if (micro.expects_gradients) return;
    micro.expects_gradients = true;
    for (const auto& [v, strips] : departures_)
      if (!boxes(v).owned.empty()) micro.returning.emplace(v, Micro::Returning{piece(v, boxes(v).owned), {}});
  }

  // ---- Forward ----

  void forward(Micro& micro) {
    expect_values(micro);
    // Images that need no margin are used where they were read.
    if (!boxes(0).held.empty() && boxes(0).held != boxes(0).frame) micro.values[0] = piece(0, boxes(0).frame);
    for (std::size_t s = 0; s < program_.steps.size(); ++s) forward_step(micro, s);
  }

  void forward_step(Micro& micro, std::size_t s) {
    const Step& step = program_.steps[s];
    const int v = step.output;
    if (runs(step) || !boxes(v).frame.empty()) make(micro, s, /*save=*/true);
    if (const auto margin = margins_.find(v); margin != margins_.end())
      message(margin->second.sent, margin->second.received);
    // Whoever gets it has posted its receive: it does not wait here.
    for (auto [it, end] = departures_.equal_range(v); it != end; ++it) message(it->second.sent);
    for (const int done : step.release_after_forward) release(micro, done);
  }

  // The output of a step, with what it saves for backward.
  void make(Micro& micro, std::size_t s, bool save) {
    const Step& step = program_.steps[s];
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
    ledger_.touch(work.forward + (apart ? bytes(made, graph_.shape({step.output}).channels) : 0));
    if (save) micro.saved[s] = saved;
  }

  void release(Micro& micro, int v) const {
    const auto& [owned, made, held, frame] = boxes(v);
    if (program_.keep[index(v)] == Keep::recomputed && margins_.contains(v)) {
      double strips = 0;
      for (const Box& box : difference(held, made)) strips += bytes(box, graph_.shape({v}).channels);
      micro.margins[v] = take(strips);
    }
    micro.values[index(v)].memory.reset();
  }

  // ---- Backward ----

  void restore(Micro& micro, int v) {
    if (micro.values[index(v)].defined() || boxes(v).frame.empty() || program_.producer[index(v)] < 0) return;
    const auto s = index(program_.producer[index(v)]);
    if (!boxes(v).made.empty())
      for (const int input : program_.steps[s].inputs) restore(micro, input);
    make(micro, s, /*save=*/false);
    micro.margins.erase(v);
  }

  void backward(Micro& micro, bool defer_weights) {
    expect_gradients(micro);
    const int loss = program_.steps.back().output;
    if (loss == static_cast<int>(graph_.nodes().size()) - 1 && !boxes(loss).owned.empty())
      micro.gradients[index(loss)].push_back(piece(loss, boxes(loss).frame));
    for (std::size_t s = program_.steps.size(); s-- > 0;) backward_step(micro, s, defer_weights);
    if (!defer_weights) {
      while (fill_wait(micro)) continue;
      micro = {};
      return;
    }
    Micro rest;
    rest.expects_values = true;
    rest.deferred = std::move(micro.deferred);
    micro = std::move(rest);
  }

  bool fill_wait(Micro& micro) {
    if (micro.deferred.empty()) return false;
    ledger_.touch(workspace(program_.steps[micro.deferred.front().step]).weight_gradient);
    micro.deferred.pop_front();
    return true;
  }

  void backward_step(Micro& micro, std::size_t s, bool defer_weights) {
    const Step& step = program_.steps[s];
    std::vector<Piece> gradients = take_gradients(micro, step, defer_weights);
    const bool agrees = step.agreement != Agreement::none;
    if (!gradients.empty() || agrees) {
      for (std::size_t i = 0; i < step.inputs.size(); ++i)
        if (step.needs_input[i]) restore(micro, step.inputs[i]);
      if (step.needs_output) restore(micro, step.output);
      if (has_weights(step) && !gradients.empty()) {
        const bool travels =
            std::any_of(step.completes.begin(), step.completes.end(), [&](int v) { return arrivals_.contains(v); });
        if (defer_weights || waits_ || travels) {
          Micro::Deferred deferred{s, {}};
          for (const int v : step.inputs) deferred.held.push_back(micro.values[index(v)].memory);
          for (const Piece& gradient : gradients) deferred.held.push_back(gradient.memory);
          deferred.held.push_back(micro.saved[s]);
          micro.deferred.push_back(std::move(deferred));
        } else {
          ledger_.touch(workspace(step).weight_gradient);
        }
      }
      const bool grouped = step.agreement == Agreement::norm ? norm_group_ : tile_group_;
      if (agrees && grouped && !defer_weights) fill_wait(micro);
      auto terms = step.pointwise ? gradients_of_pointwise(micro, step, std::move(gradients))
                                  : gradients_of(step, std::move(gradients));
      for (std::size_t i = 0; i < step.inputs.size(); ++i)
        if (step.inputs[i] != 0 && terms[i].defined()) accumulate(micro, step.inputs[i], std::move(terms[i]));
    }
    for (const int v : step.completes) send_back(micro, v);
    if (!defer_weights)
      while (micro.deferred.size() > most_put_off) fill_wait(micro);
    micro.saved[s].reset();
    for (const int v : step.release_after_backward) micro.values[index(v)].memory.reset();
  }

  std::vector<Piece> take_gradients(Micro& micro, const Step& step, bool defer_weights) {
    const int v = step.output;
    for (auto [it, end] = micro.returning.equal_range(v); it != end; it = micro.returning.erase(it)) {
      if (!defer_weights) fill_wait(micro);
      accumulate(micro, v, std::move(it->second.gradient));
    }
    auto terms = std::move(micro.gradients[index(v)]);
    micro.gradients[index(v)].clear();
    const Box& made = boxes(v).made;
    if (made.empty()) return {};
    for (Piece& term : terms) term = covering(v, std::move(term), made);
    if (terms.size() > 1 && !step.pointwise) {
      Piece second = std::move(terms[1]);
      terms.pop_back();
      terms[0] = sum(v, std::move(terms[0]), std::move(second));
    }
    return terms;
  }

  // PointwiseFlow::first_pass() and input_gradients().
  std::vector<Piece> gradients_of_pointwise(Micro& micro, const Step& step, std::vector<Piece> gradients) {
    const Pointwise& p = *step.pointwise;
    std::vector<Piece> out(p.terms.size());
    if (gradients.empty()) return out;
    const Box box = gradients[0].box;
    const bool relu = p.activation && p.activation->kind == ActivationKind::relu;
    const bool product = p.combine == Combine::product && p.terms.size() == 2;
    const bool simple = p.combine == Combine::sum && (!p.activation || relu);
    const bool own_mask = p.terms.size() == 1 && p.terms[0].norm >= 0 && !p.by_output;
    const bool write = gradients.size() > 1 || !simple || (relu && !own_mask);
    Piece g = std::move(gradients[0]);
    gradients.erase(gradients.begin());
    Piece second;
    {
      const Memory read = g.memory;
      const bool fresh = write && read.use_count() > 2;
      if (fresh) g = piece(step.output, box);
      if (product && !p.spread) second = piece(step.output, box);
    }
    gradients.clear();
    const auto g_of = [&](std::size_t t) -> Piece& { return t == 1 && second.defined() ? second : g; };
    std::vector<Piece> addends(p.terms.size());
    for (std::size_t t = 0; t < p.terms.size(); ++t) {
      auto& terms = micro.gradients[index(step.inputs[t])];
      if (p.terms[t].norm < 0 || terms.empty() || terms.back().box != box) continue;
      addends[t] = std::move(terms.back());
      terms.pop_back();
    }
    const auto small = [&](std::size_t t) { return t == 1 && p.spread; };
    std::size_t readers = 0;
    for (std::size_t t = 0; t < p.terms.size(); ++t) {
      const bool factor = t == 0 && p.spread && p.combine == Combine::product;
      if (small(t))
        out[t] = piece(step.inputs[t],
                       intersect(input_box(graph_, step, box, t), graph_.shape({step.inputs[t]}).box(box.batch())));
      else if (p.terms[t].norm < 0 && !factor)
        out[t] = g_of(t);
      else if (&g_of(t) == &g)
        ++readers;
    }
    for (std::size_t t = 0; t < p.terms.size(); ++t) {
      if (out[t].defined()) continue;
      Piece mine = g_of(t);
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

  std::vector<Piece> gradients_of(const Step& step, std::vector<Piece> gradients) {
    std::vector<Piece> out(step.inputs.size());
    const Workspace work = workspace(step);
    ledger_.touch(work.input_gradient);
    for (std::size_t i = 0; i < out.size(); ++i) {
      const int v = step.inputs[i];
      if (v == 0) continue;
      const Boxes& in = boxes(v);
      Box box = in.owned;
      if (!step.reduces) {
        if (gradients.empty()) continue;
        box = intersect(input_box(graph_, step, gradients[0].box, i), graph_.shape({v}).box(in.held.batch()));
      }
      if (box.empty()) continue;
      out[i] = work.shares_input && !gradients.empty() ? Piece{gradients[0].memory, box} : piece(v, box);
      ledger_.touch(work.input_gradient);
    }
    return out;
  }

  Piece covering(int v, Piece term, const Box& box) const {
    if (term.box.contains(box)) return std::move(term).part(box);
    return piece(v, box);  // `term` lives until here
  }

  Piece sum(int v, Piece a, Piece b) const {
    const Box box = hull(a.box, b.box);
    const auto usable = [&](const Piece& p) { return p.box == box && p.exclusive(); };
    if (usable(a)) return a;
    if (usable(b)) return b;
    return piece(v, box);
  }

  void accumulate(Micro& micro, int v, Piece term) const {
    auto& terms = micro.gradients[index(v)];
    terms.push_back(std::move(term));
    if (terms.size() <= 2) return;
    Piece last = std::move(terms[2]);
    terms.pop_back();
    terms[1] = sum(v, std::move(terms[1]), std::move(last));
  }

  Piece take_merged(Micro& micro, int v, const Box& inside, const Box& box) const {
    auto& terms = micro.gradients[index(v)];
    Piece merged;
    std::vector<Piece> rest;
    for (Piece& term : terms) {
      if (inside.contains(intersect(term.box, graph_.shape({v}).box(term.box.batch()))) && merged.defined())
        rest.push_back(std::move(term));
      else if (merged.defined())
        merged = sum(v, std::move(merged), std::move(term));
      else
        merged = std::move(term);
    }
    terms = std::move(rest);
    return merged.defined() ? covering(v, std::move(merged), box) : piece(v, box);
  }

  void send_back(Micro& micro, int v) {
    const auto& [owned, made, held, frame] = boxes(v);
    if (const auto margin = margins_.find(v); margin != margins_.end()) {
      Piece gradient = take_merged(micro, v, made, held);
      if (!gradient.exclusive()) gradient = piece(v, held);
      Micro::Returning returning{std::move(gradient).part(made), {}};
      for (const double strip : margin->second.sent) returning.staged.push_back(buffers_.take(strip));
      message(margin->second.received);
      micro.returning.emplace(v, std::move(returning));
    }
    if (const auto arrival = arrivals_.find(v); arrival != arrivals_.end() && !held.empty()) {
      take_merged(micro, v, made, held);
      message(arrival->second.received);
    }
  }

  void message(const std::vector<double>& strips, const std::vector<double>& more = {}) {
    if (!options_.packed) return;
    std::vector<Memory> wires;
    for (const auto* list : {&strips, &more})
      for (const double strip : *list) wires.push_back(buffers_.take(strip));
  }

  // As in the executor: more would hold much memory.
  static constexpr std::size_t most_put_off = 3;

  const Graph& graph_;
  const Program program_;
  const FootprintOptions options_;
  Ledger& ledger_;
  Buffers& buffers_;
  std::vector<Boxes> boxes_;                                    // by value
  std::multimap<int, Strips> margins_, arrivals_, departures_;  // by value
  bool norm_group_ = false, tile_group_ = false, waits_ = false;
  std::vector<Micro> micros_;
};

MemberWalk::MemberWalk(const Graph& graph, const Plan& plan, const Layout& layout, const Plan::Place& place,
                       const FootprintOptions& options, Ledger& ledger, Buffers& buffers)
    : impl_(std::make_unique<Impl>(graph, plan, layout, place, options, ledger, buffers)) {}
MemberWalk::~MemberWalk() = default;

void MemberWalk::expect(const Action& action) { impl_->expect(action); }
void MemberWalk::run(const Action& action) { impl_->run(action); }

}  // namespace tessera
