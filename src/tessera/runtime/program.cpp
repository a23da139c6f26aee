#include "tessera/runtime/program.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/ops/pointwise.h"

namespace tessera {
namespace {

// A step before its kernel is made.
struct Draft {
  std::vector<int> inputs;
  int output = -1;
  // For point-wise steps: the norm of each input (null: as it is), and whether ReLU follows.
  bool pointwise = false;
  std::vector<const Node*> norms;
  bool relu = false;
  bool mask_from_output = false;
};

template <class Op>
bool is(const Node& node) {
  return dynamic_cast<const Op*>(node.op.get()) != nullptr;
}

// Walks the nodes once and puts each into a step:
//
//     conv    conv                    conv    conv
//      |       |                        \      /
//     norm    norm                    [ norm+norm
//       \      /           ->           add
//         add                           relu ]
//         relu                            |
class Grouping {
 public:
  Grouping(const Graph& graph, const Stage& stage, const std::vector<ValueLayout>& layout)
      : graph_(graph), stage_(stage), layout_(layout), consumers_(graph.consumers()), taken_(graph.nodes().size()) {}

  std::vector<Draft> run() {
    std::vector<Draft> drafts;
    for (int n = std::max(1, stage_.first_node); n < stage_.end_node; ++n) {
      const Node& node = graph_.node({n});
      if (taken_[static_cast<std::size_t>(n)] || waits_for_add(n)) continue;
      Draft draft;
      draft.output = n;
      if (is<BatchNorm>(node)) {
        draft.pointwise = true;
        add_term(draft, {n});
      } else if (is<Add>(node) || is<Relu>(node)) {
        draft.pointwise = true;
        draft.relu = is<Relu>(node);
        for (Value v : node.inputs) add_term(draft, v);
      } else {
        for (Value v : node.inputs) draft.inputs.push_back(v.id);
      }
      if (draft.pointwise && !draft.relu && only_reader<Relu>(n)) {
        draft.output = consumers_[static_cast<std::size_t>(n)][0];
        draft.relu = true;
      }
      taken_[static_cast<std::size_t>(draft.output)] = true;
      drafts.push_back(std::move(draft));
    }
    return drafts;
  }

 private:
  // The one reader of value n, if it is an Op of this stage that makes the same boxes.
  template <class Op>
  const Node* only_reader(int n) const {
    const auto& readers = consumers_[static_cast<std::size_t>(n)];
    if (readers.size() != 1 || readers[0] >= stage_.end_node) return nullptr;
    if (layout_[static_cast<std::size_t>(n)].made != layout_[static_cast<std::size_t>(readers[0])].made) return nullptr;
    const Node& reader = graph_.node({readers[0]});
    return is<Op>(reader) ? &reader : nullptr;
  }
  // A norm that only an add reads becomes a term of the add's step.
  bool waits_for_add(int n) const { return is<BatchNorm>(graph_.node({n})) && only_reader<Add>(n) != nullptr; }

  void add_term(Draft& draft, Value v) {
    const Node& node = graph_.node(v);
    const bool inner =
        v.id >= stage_.first_node && is<BatchNorm>(node) && (v.id == draft.output || waits_for_add(v.id));
    draft.norms.push_back(inner ? &node : nullptr);
    draft.inputs.push_back(inner ? node.inputs[0].id : v.id);
  }

  const Graph& graph_;
  const Stage& stage_;
  const std::vector<ValueLayout>& layout_;
  const std::vector<std::vector<int>> consumers_;
  std::vector<bool> taken_;
};

std::unique_ptr<Kernel> make_step_kernel(const Graph& graph, const Parameters& parameters, const Draft& draft,
                                         bool output_is_normalised) {
  const Node& last = graph.node({draft.output});
  if (!draft.pointwise) return make_kernel(graph, last, parameters.of(last));
  PointwiseOptions options{.terms = {},
                           .relu = draft.relu,
                           .mask_from_output = draft.mask_from_output,
                           .channels = last.shape.channels,
                           .on_gpu = parameters.device().is_cuda(),
                           .moments = output_is_normalised && parameters.device().is_cuda()};
  for (const Node* norm : draft.norms)
    options.terms.push_back(
        norm ? PointwiseTerm{dynamic_cast<const BatchNorm*>(norm->op.get()), parameters.of(*norm), norm->name}
             : PointwiseTerm{});
  return make_pointwise_kernel(std::move(options));
}

// Whether a step of this kind wants its input's data in backward, whatever becomes of other values.
bool wants_input(const Graph& graph, const Draft& draft, std::size_t i) {
  if (draft.pointwise) return draft.norms[i] != nullptr;
  const Node& node = graph.node({draft.output});
  return is<Conv>(node) || is<ConvTranspose>(node) || is<Linear>(node);
}

// How many point-wise outputs may be made again one from the other. Each is made once, whatever the length of the
// chain, but all of a chain come back to life together: as many as the blocks of a group in the usual networks are
// bearable.
constexpr int longest_chain = 6;

// Decides, in forward order, what is stored and what is made again. A point-wise output is made again if its inputs
// are there anyway (stored, or made again themselves), or if storing them instead costs less.
std::vector<Keep> decide(const Graph& graph, std::vector<Draft>& drafts, Recompute recompute) {
  std::vector<bool> wanted(graph.nodes().size());
  for (const auto& draft : drafts)
    for (std::size_t i = 0; i < draft.inputs.size(); ++i)
      if (wants_input(graph, draft, i)) wanted[static_cast<std::size_t>(draft.inputs[i])] = true;

  std::vector<Keep> keep(graph.nodes().size(), Keep::dropped);
  std::vector<bool> made(graph.nodes().size());
  for (const auto& draft : drafts) made[static_cast<std::size_t>(draft.output)] = true;
  for (std::size_t v = 0; v < keep.size(); ++v)
    if (wanted[v] && !made[v]) keep[v] = Keep::stored;  // the images, and what other stages have made
  std::vector<bool> pointwise(graph.nodes().size());
  std::vector<int> chain(graph.nodes().size());  // by value: how many values are made again up to it
  for (auto& draft : drafts) {
    const auto out = static_cast<std::size_t>(draft.output);
    const auto there_anyway = [&](int v) {
      const auto i = static_cast<std::size_t>(v);
      if (!pointwise[i]) return bool(wanted[i]);
      return keep[i] == Keep::stored || (keep[i] == Keep::recomputed && chain[i] < longest_chain);
    };
    if (!draft.pointwise) {
      keep[out] = wanted[out] ? Keep::stored : Keep::dropped;
      continue;
    }
    pointwise[out] = true;
    if (!wanted[out] && !draft.relu) continue;
    std::int64_t extra = 0;
    bool possible = recompute != Recompute::none;
    for (int v : draft.inputs) {
      if (there_anyway(v)) continue;
      extra += graph.shape({v}).elements();
      possible = possible && !pointwise[static_cast<std::size_t>(v)];
    }
    // Storing another value instead gains nothing, unless several readers make theirs from it: ReLUs of one value do.
    const std::int64_t gain = graph.shape({draft.output}).elements() - extra;
    if (possible && (gain > 0 || (gain == 0 && draft.inputs.size() == 1))) {
      // With one input the mask is read from it, and the output may not be wanted at all.
      draft.mask_from_output = draft.relu && draft.inputs.size() > 1;
      keep[out] = wanted[out] || draft.mask_from_output ? Keep::recomputed : Keep::dropped;
      for (int v : draft.inputs) {
        const auto in = static_cast<std::size_t>(v);
        if (keep[in] == Keep::recomputed) continue;
        wanted[in] = true;
        keep[in] = Keep::stored;
      }
      chain[out] = 1;
      for (int v : draft.inputs) chain[out] = std::max(chain[out], chain[static_cast<std::size_t>(v)] + 1);
    } else {
      draft.mask_from_output = draft.relu;
      keep[out] = Keep::stored;
      wanted[out] = true;
    }
  }
  return keep;
}

// Keeps what crosses from one cell to another, and what comes from elsewhere; all else that backward wants is made
// again from that. In reverse, because what is made again wants its inputs.
std::vector<Keep> decide_by_blocks(const Graph& graph, std::vector<Draft>& drafts) {
  const auto consumers = graph.consumers();
  const auto leaves_cell = [&](int v) {
    const auto& readers = consumers[static_cast<std::size_t>(v)];
    return std::any_of(readers.begin(), readers.end(),
                       [&](int r) { return graph.node({r}).cell != graph.node({v}).cell; });
  };
  const auto repeats = [&](const Draft& draft) {
    const Node& node = graph.node({draft.output});
    return draft.pointwise || is<Conv>(node) || is<ConvTranspose>(node) || is<Upsample>(node) || is<MaxPool>(node) ||
           is<AvgPool>(node) || is<Concat>(node) || is<Dropout>(node);
  };
  std::vector<bool> wanted(graph.nodes().size());
  std::vector<Keep> keep(graph.nodes().size(), Keep::dropped);
  for (auto& draft : drafts) {
    draft.mask_from_output = draft.relu && draft.inputs.size() > 1;
    if (draft.mask_from_output) wanted[static_cast<std::size_t>(draft.output)] = true;
    for (std::size_t i = 0; i < draft.inputs.size(); ++i)
      if (wants_input(graph, draft, i) || (draft.relu && !draft.mask_from_output))
        wanted[static_cast<std::size_t>(draft.inputs[i])] = true;
  }
  for (auto draft = drafts.rbegin(); draft != drafts.rend(); ++draft) {
    const auto out = static_cast<std::size_t>(draft->output);
    if (!wanted[out]) continue;
    const bool kept = leaves_cell(draft->output) || !repeats(*draft);
    keep[out] = kept ? Keep::stored : Keep::recomputed;
    if (kept) continue;
    for (int v : draft->inputs) wanted[static_cast<std::size_t>(v)] = true;
  }
  std::vector<bool> made(graph.nodes().size());
  for (const auto& draft : drafts) made[static_cast<std::size_t>(draft.output)] = true;
  for (std::size_t v = 0; v < keep.size(); ++v)
    if (wanted[v] && !made[v]) keep[v] = Keep::stored;  // the images, and what other stages have made
  return keep;
}

std::vector<Keep> kept_by(const Graph& graph, std::vector<Draft>& drafts, Recompute recompute) {
  return recompute == Recompute::block ? decide_by_blocks(graph, drafts) : decide(graph, drafts, recompute);
}

}  // namespace

double kept_elements(const Graph& graph, const Stage& stage, const std::vector<ValueLayout>& layout,
                     Recompute recompute) {
  auto drafts = Grouping(graph, stage, layout).run();
  const auto keep = kept_by(graph, drafts, recompute);
  double elements = 0;
  for (std::size_t v = 0; v < keep.size(); ++v)
    if (keep[v] == Keep::stored && layout[v].used())
      elements += static_cast<double>(layout[v].frame[0].volume() * graph.nodes()[v].shape.channels);
  return elements;
}

Program::Program(const Graph& graph, const Stage& stage, const std::vector<ValueLayout>& layout,
                 const Parameters& parameters, Recompute recompute)
    : producer(graph.nodes().size(), -1) {
  auto drafts = Grouping(graph, stage, layout).run();
  keep = kept_by(graph, drafts, recompute);
  std::vector<bool> normalised(graph.nodes().size());  // by value: whether a step of this stage takes its moments
  for (const auto& draft : drafts)
    for (std::size_t i = 0; i < draft.norms.size(); ++i)
      if (draft.norms[i]) normalised[static_cast<std::size_t>(draft.inputs[i])] = true;
  int complete_from = stage.first_node;
  for (auto& draft : drafts) {
    Step step;
    step.name = graph.node({draft.output}).name;
    step.complete_from = complete_from;
    complete_from = std::max(complete_from, draft.output + 1);
    step.reduces = graph.node({draft.output}).op->reduces_positions();
    step.kernel = make_step_kernel(graph, parameters, draft, normalised[static_cast<std::size_t>(draft.output)]);
    step.needs = step.kernel->needs();
    step.inputs = std::move(draft.inputs);
    step.output = draft.output;
    producer[static_cast<std::size_t>(step.output)] = static_cast<int>(steps.size());
    steps.push_back(std::move(step));
  }

  // The last step, in the order of each pass, that looks at a value's data, and the first that reads it at all.
  std::vector<int> last_forward(keep.size(), -1), last_backward(keep.size(), -1), first_reader(keep.size(), -1);
  for (int s = static_cast<int>(steps.size()) - 1; s >= 0; --s) {
    const Step& step = steps[static_cast<std::size_t>(s)];
    const auto out = static_cast<std::size_t>(step.output);
    if (step.needs.output) last_backward[out] = s;
    for (std::size_t i = 0; i < step.inputs.size(); ++i) {
      const auto in = static_cast<std::size_t>(step.inputs[i]);
      if (last_forward[in] < 0) last_forward[in] = s;
      first_reader[in] = s;
      // An output that is made again must be made before this step goes back at the latest.
      if (step.needs.inputs[i] || keep[out] == Keep::recomputed) last_backward[in] = s;
    }
  }
  for (const Step& step : steps) {
    // What only other stages read has left when its step ends; the loss is looked at afterwards.
    int& last = last_forward[static_cast<std::size_t>(step.output)];
    if (last < 0 && step.output + 1 < static_cast<int>(keep.size()))
      last = producer[static_cast<std::size_t>(step.output)];
  }
  for (std::size_t v = 0; v < keep.size(); ++v) {
    if (first_reader[v] >= 0) steps[static_cast<std::size_t>(first_reader[v])].completes.push_back(static_cast<int>(v));
    if (last_forward[v] >= 0) {
      Step& last = steps[static_cast<std::size_t>(last_forward[v])];
      if (keep[v] != Keep::stored) last.release_after_forward.push_back(static_cast<int>(v));
      // What the loss is made of is the network's answer.
      if (last.output + 1 < static_cast<int>(keep.size())) last.release_in_evaluation.push_back(static_cast<int>(v));
    }
    if (last_backward[v] >= 0)
      steps[static_cast<std::size_t>(last_backward[v])].release_after_backward.push_back(static_cast<int>(v));
  }
}

}  // namespace tessera
