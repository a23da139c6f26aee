#include "tessera/program/program.h"

#include <algorithm>
#include <charconv>

#include "tessera/base/error.h"
#include "tessera/base/index.h"
#include "tessera/program/fusion.h"
#include "tessera/program/keep.h"

namespace tessera {
namespace {

// Operations per element of the output: what a processor does while it reads and writes the element a few times.
constexpr double light_flops = 300;

bool is_light(const Graph& graph, const Step& step) {
  if (step.pointwise) return true;
  const Node& node = graph.node({step.node});
  return graph.cost(node, 1).forward_flops <= light_flops * static_cast<double>(node.shape.elements());
}

}  // namespace

std::string words_of(const Recompute& recompute) {
  if (recompute == Recompute::none) return "none";
  if (recompute == Recompute::norm) return "norm";
  return recompute.cells == 1 ? "block" : concat("block:", recompute.cells);
}

Recompute parse_recompute(const std::string& text) {
  if (text == "none") return Recompute::none;
  if (text == "norm") return Recompute::norm;
  constexpr std::string_view blocks = "block:";
  int cells = 1;
  if (text != "block") {
    const char* end = text.data() + text.size();
    const bool known = text.starts_with(blocks);
    const auto [stop, error] = std::from_chars(text.data() + (known ? blocks.size() : 0), end, cells);
    require(known && error == std::errc() && stop == end && cells >= 1, "--recompute ", text,
            " is not one of none, norm, block, or block:N for blocks of N cells");
  }
  return {Recompute::block, cells};
}

Program::Program(const Graph& graph, NodeRange range, Recompute recompute, const SameBoxes& same_boxes)
    : nodes(range),
      steps(fused_steps(graph, range, same_boxes)),
      keep(decide_keep(graph, steps, recompute)),
      producer(graph.nodes().size(), -1) {
  const int loss = static_cast<int>(graph.nodes().size()) - 1;
  std::vector<bool> normalised(keep.size());  // by value: whether a step of this stage takes its moments
  for (const Step& step : steps)
    for (std::size_t i = 0; step.pointwise && step.agreement != Agreement::none && i < step.inputs.size(); ++i)
      if (step.pointwise->terms[i].norm >= 0) normalised[index(step.inputs[i])] = true;
  light.assign(keep.size(), false);
  light_in_forward.assign(keep.size(), false);
  int complete_from = range.first;
  for (std::size_t s = 0; s < steps.size(); ++s) {
    Step& step = steps[s];
    step.complete_from = complete_from;
    complete_from = std::max(complete_from, step.output + 1);
    step.moments = normalised[index(step.output)];
    producer[index(step.output)] = static_cast<int>(s);
    light[index(step.output)] = keep[index(step.output)] == Keep::recomputed && is_light(graph, step);
    light_in_forward[index(step.output)] =
        light[index(step.output)] &&
        std::all_of(step.inputs.begin(), step.inputs.end(), [&](int v) { return keep[index(v)] == Keep::stored; });
  }

  // The last step, in the order of each pass, that looks at a value's data, and the first that reads it at all.
  std::vector<int> last_forward(keep.size(), -1), last_backward(keep.size(), -1), first_reader(keep.size(), -1);
  for (int s = static_cast<int>(steps.size()) - 1; s >= 0; --s) {
    const Step& step = steps[index(s)];
    const auto out = index(step.output);
    if (step.needs_output) last_backward[out] = s;
    for (std::size_t i = 0; i < step.inputs.size(); ++i) {
      const auto in = index(step.inputs[i]);
      if (last_forward[in] < 0) last_forward[in] = s;
      first_reader[in] = s;
      // An output that is made again must be made before this step goes back at the latest.
      if (step.needs_input[i] || keep[out] == Keep::recomputed) last_backward[in] = s;
    }
  }
  for (const Step& step : steps) {
    // What only other stages read has left when its step ends; the loss is looked at afterwards.
    int& last = last_forward[index(step.output)];
    if (last < 0 && step.output < loss) last = producer[index(step.output)];
  }
  for (int v = 0; v <= loss; ++v) {
    if (first_reader[index(v)] >= 0) steps[index(first_reader[index(v)])].completes.push_back(v);
    if (last_forward[index(v)] >= 0) {
      Step& last = steps[index(last_forward[index(v)])];
      if (keep[index(v)] != Keep::stored) last.release_after_forward.push_back(v);
      // What the loss is made of is the network's answer.
      if (last.output < loss) last.release_in_evaluation.push_back(v);
    }
    if (last_backward[index(v)] >= 0) steps[index(last_backward[index(v)])].release_after_backward.push_back(v);
  }
}

Box input_box(const Graph& graph, const Step& step, const Box& out, std::size_t i) {
  if (!step.pointwise) {
    const Node& node = graph.node({step.node});
    return node.op->input_box(out, i, graph.input_shapes(node));
  }
  const Shape& shape = graph.shape({step.inputs[i]});
  return shape.positions() == 1 ? shape.box(out.batch()) : out;
}

std::vector<bool> put_off_for_others(const std::vector<Step>& steps, std::size_t most,
                                     const std::function<bool(std::size_t)>& weighs,
                                     const std::function<bool(int)>& came) {
  std::vector<bool> put_off(steps.size(), false);
  std::vector<std::size_t> weighed;  // on the way back
  for (std::size_t s = steps.size(); s-- > 0;) {
    if (weighs(s)) weighed.push_back(s);
    if (std::any_of(steps[s].completes.begin(), steps[s].completes.end(), came))
      for (std::size_t i = weighed.size() - std::min(most, weighed.size()); i < weighed.size(); ++i)
        put_off[weighed[i]] = true;
  }
  return put_off;
}

double kept_elements(const Graph& graph, const Program& program) {
  double elements = 0;
  for (std::size_t v = 0; v < program.keep.size(); ++v)
    if (program.keep[v] == Keep::stored) elements += static_cast<double>(graph.nodes()[v].shape.elements());
  return elements;
}

}  // namespace tessera
