#include "tessera/program/keep.h"

#include <algorithm>

#include "tessera/base/index.h"

namespace tessera {
namespace {

// How many point-wise outputs may be made again one from the other. Each is made once, whatever the length of the
// chain, but all of a chain come back to life together: as many as the blocks of a group in the usual networks are
// bearable.
constexpr int longest_chain = 6;

// Whether the output of a point-wise step may stand in for its inputs when backward asks for the derivative.
bool may_read_output(const Pointwise& p) {
  return p.activation && !p.spread && derivative_by_value(p.activation->kind) &&
         (p.combine == Combine::sum || p.terms.size() == 1);
}

// Whether backward wants the input's data, whatever becomes of other values.
bool wants_input(const Graph& graph, const Step& step, std::size_t i) {
  if (!step.pointwise) return graph.node({step.node}).op->needs().inputs;
  return step.pointwise->terms[i].norm >= 0 || step.pointwise->reads_all_terms();
}
bool wants_output(const Graph& graph, const Step& step) {
  if (!step.pointwise) return graph.node({step.node}).op->needs().output;
  return step.pointwise->by_output;
}

// What a step of this program makes; the rest enters: the images, and what other stages have made.
std::vector<bool> made_by(const Graph& graph, const std::vector<Step>& steps) {
  std::vector<bool> made(graph.nodes().size());
  for (const Step& step : steps) made[index(step.output)] = true;
  return made;
}

// Decides, in forward order, what is stored and what is made again. A point-wise output is made again if its inputs
// are there anyway (stored, or made again themselves), or if storing them instead costs less.
class ByStep {
 public:
  ByStep(const Graph& graph, std::vector<Step>& steps, Recompute recompute)
      : graph_(graph),
        steps_(steps),
        recompute_(recompute),
        wanted_(graph.nodes().size()),
        pointwise_(wanted_.size()),
        keep_(wanted_.size(), Keep::dropped),
        chain_(wanted_.size()) {}

  std::vector<Keep> run() {
    // An activation that can be read from the output leaves the choice to decide(); all others are settled here.
    for (Step& step : steps_) {
      const bool open = step.pointwise && may_read_output(*step.pointwise);
      if (open) step.pointwise->by_output = true;
      for (std::size_t i = 0; i < step.inputs.size(); ++i)
        if (wants_input(graph_, step, i)) wanted_[index(step.inputs[i])] = true;
      if (!open && wants_output(graph_, step)) wanted_[index(step.output)] = true;
    }
    const auto made = made_by(graph_, steps_);
    for (std::size_t v = 0; v < keep_.size(); ++v)
      if (wanted_[v] && !made[v]) keep_[v] = Keep::stored;
    for (Step& step : steps_) {
      if (step.pointwise)
        decide(step, *step.pointwise);
      else
        keep_[index(step.output)] = wanted_[index(step.output)] ? Keep::stored : Keep::dropped;
    }
    return std::move(keep_);
  }

 private:
  bool there_anyway(int v) const {
    const auto i = index(v);
    if (!pointwise_[i]) return wanted_[i];
    return keep_[i] == Keep::stored || (keep_[i] == Keep::recomputed && chain_[i] < longest_chain);
  }

  void decide(const Step& step, Pointwise& p) {
    const auto out = index(step.output);
    pointwise_[out] = true;
    const bool open = may_read_output(p);
    if (!wanted_[out] && !open) return;
    std::int64_t extra = 0;
    bool possible = !(recompute_ == Recompute::none);
    for (const int v : step.inputs) {
      if (there_anyway(v)) continue;
      extra += graph_.shape({v}).elements();
      possible = possible && !pointwise_[index(v)];
    }
    // Storing another value instead gains nothing, unless several readers make theirs from it: ReLUs of one value do.
    const std::int64_t gain = graph_.shape({step.output}).elements() - extra;
    if (possible && (gain > 0 || (gain == 0 && step.inputs.size() == 1))) {
      // With one input the derivative is read from it, and the output may not be wanted at all.
      p.by_output = open && step.inputs.size() > 1;
      keep_[out] = wanted_[out] || p.by_output ? Keep::recomputed : Keep::dropped;
      chain_[out] = 1;
      for (const int v : step.inputs) {
        chain_[out] = std::max(chain_[out], chain_[index(v)] + 1);
        if (keep_[index(v)] == Keep::recomputed) continue;
        wanted_[index(v)] = true;
        keep_[index(v)] = Keep::stored;
      }
    } else {
      p.by_output = open;
      keep_[out] = Keep::stored;
      wanted_[out] = true;
    }
  }

  const Graph& graph_;
  std::vector<Step>& steps_;
  const Recompute recompute_;
  std::vector<bool> wanted_, pointwise_;
  std::vector<Keep> keep_;
  std::vector<int> chain_;  // by value: how many values are made again up to it
};

// Keeps what crosses from one block of cells to another, and what comes from elsewhere; all else that backward wants is
// made again from that. In reverse, because what is made again wants its inputs.
std::vector<Keep> by_blocks(const Graph& graph, std::vector<Step>& steps, int cells) {
  const auto consumers = graph.consumers();
  const int first = steps.empty() ? 0 : graph.node({steps.front().node}).cell;
  const auto block_of = [&](int node) { return (graph.node({node}).cell - first) / cells; };
  const auto leaves_block = [&](int v) {
    const auto& readers = consumers[index(v)];
    return std::any_of(readers.begin(), readers.end(), [&](int r) { return block_of(r) != block_of(v); });
  };
  std::vector<bool> wanted(graph.nodes().size());
  std::vector<Keep> keep(wanted.size(), Keep::dropped);
  for (Step& step : steps) {
    if (step.pointwise) step.pointwise->by_output = may_read_output(*step.pointwise) && step.inputs.size() > 1;
    if (wants_output(graph, step)) wanted[index(step.output)] = true;
    for (std::size_t i = 0; i < step.inputs.size(); ++i)
      if (wants_input(graph, step, i)) wanted[index(step.inputs[i])] = true;
  }
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    const auto out = index(step->output);
    if (!wanted[out]) continue;
    const bool kept = leaves_block(step->output) || !graph.node({step->node}).op->repeats();
    keep[out] = kept ? Keep::stored : Keep::recomputed;
    if (kept) continue;
    for (const int v : step->inputs) wanted[index(v)] = true;
  }
  const auto made = made_by(graph, steps);
  for (std::size_t v = 0; v < keep.size(); ++v)
    if (wanted[v] && !made[v]) keep[v] = Keep::stored;
  return keep;
}

}  // namespace

std::vector<Keep> decide_keep(const Graph& graph, std::vector<Step>& steps, Recompute recompute) {
  auto keep =
      recompute == Recompute::block ? by_blocks(graph, steps, recompute.cells) : ByStep(graph, steps, recompute).run();
  for (Step& step : steps) {
    for (std::size_t i = 0; i < step.inputs.size(); ++i) step.needs_input.push_back(wants_input(graph, step, i));
    step.needs_output = wants_output(graph, step);
  }
  return keep;
}

}  // namespace tessera
