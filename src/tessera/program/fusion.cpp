#include "tessera/program/fusion.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/base/index.h"

namespace tessera {
namespace {

// Walks the nodes once and puts each into a step:
//
//     conv    conv                    conv    conv
//      |       |                        \      /
//     norm    norm                    [ norm+norm
//       \      /           ->           add
//         add                           relu ]
//         relu                            |
class Fusion {
 public:
  Fusion(const Graph& graph, NodeRange nodes, const SameBoxes& same_boxes)
      : graph_(graph), nodes_(nodes), same_boxes_(same_boxes), consumers_(graph.consumers()) {
    for (const Node& node : graph.nodes()) formulas_.push_back(node.op ? node.op->formula() : std::nullopt);
    taken_.resize(formulas_.size());
  }

  std::vector<Step> run() {
    std::vector<Step> steps;
    for (int n = std::max(1, nodes_.first); n < nodes_.end; ++n)
      if (!taken_[index(n)] && !becomes_a_term(n)) steps.push_back(step_from(n));
    // A step stands where its last node does: by then all that it reads is there.
    std::stable_sort(steps.begin(), steps.end(), [](const Step& a, const Step& b) { return a.output < b.output; });
    return steps;
  }

 private:

  template <class Formula>
  const Formula* formula(int n) const {
    return formulas_[index(n)] ? std::get_if<Formula>(&*formulas_[index(n)]) : nullptr;
  }

  // The one reader of value n, if it says such a formula, is a node of this stage and makes the same boxes.
  template <class Formula>
  int only_reader(int n) const {
    const auto& readers = consumers_[index(n)];
    if (readers.size() != 1 || readers[0] >= nodes_.end || !formula<Formula>(readers[0])) return -1;
    if (same_boxes_ && !same_boxes_(n, readers[0])) return -1;
    return readers[0];
  }

  // A norm that only a sum or product reads becomes a term of that step, if the two have no other kind of agreement.
  bool becomes_a_term(int n) const {
    if (n < nodes_.first || !formula<NormFormula>(n)) return false;
    const int reader = only_reader<Combine>(n);
    if (reader < 0 || graph_.shape({n}) != graph_.shape({reader})) return false;
    for (const Value v : graph_.node({reader}).inputs)
      if (v.id != n && formula<NormFormula>(v.id) && agreement(v.id) != agreement(n)) return false;
    return true;
  }

  Agreement agreement(int n) const { return graph_.node({n}).op->agreement(); }

  Step step_from(int n) {
    const Node& node = graph_.node({n});
    Step step;
    step.output = n;
    step.agreement = agreement(n);
    if (formulas_[index(n)]) {
      step.pointwise.emplace();
      if (formula<NormFormula>(n)) {
        add_term(step, {n}, /*inside=*/true);
      } else {
        for (const Value v : node.inputs) add_term(step, v, becomes_a_term(v.id));
      }
      if (const Combine* combine = formula<Combine>(n)) {
        step.pointwise->combine = *combine;
        step.pointwise->spread = graph_.shape(node.inputs[1]) != node.shape;
      }
      int last = n;
      if (!formula<Activation>(n)) last = only_reader<Activation>(n);
      if (last >= 0) {
        step.pointwise->activation = *formula<Activation>(last);
        step.output = last;
      }
    } else {
      for (const Value v : node.inputs) step.inputs.push_back(v.id);
      step.reduces = node.op->reduces_positions();
    }
    taken_[index(step.output)] = true;
    step.node = step.output;
    step.name = graph_.node({step.output}).name;
    return step;
  }

  void add_term(Step& step, Value v, bool inside) const {
    step.pointwise->terms.push_back({inside ? v.id : -1});
    step.inputs.push_back(inside ? graph_.node(v).inputs[0].id : v.id);
    if (inside && agreement(v.id) != Agreement::none) step.agreement = agreement(v.id);
  }

  const Graph& graph_;
  const NodeRange nodes_;
  const SameBoxes& same_boxes_;
  const std::vector<std::vector<int>> consumers_;
  std::vector<std::optional<PointwiseFormula>> formulas_;
  std::vector<bool> taken_;
};

}  // namespace

std::vector<Step> fused_steps(const Graph& graph, NodeRange nodes, const SameBoxes& same_boxes) {
  return Fusion(graph, nodes, same_boxes).run();
}

}  // namespace tessera
