#include "tessera/runtime/footprint.h"

#include <algorithm>
#include <set>

#include "tessera/plan/layout.h"
#include "tessera/schedule/simulator.h"

namespace tessera {
namespace {

// The weights of a step as its kernel wants them, and their gradient before it is added.
constexpr double weights_at_work = 2;

// Receives of the next two actions are posted ahead, beside those of the present one, and what was sent may still be on
// its way.
constexpr double messages_under_way = 3;

// Bytes. Activations may be narrower.
constexpr double narrowest_parameter = 4;

// Elements of a value in the largest of the members' boxes.
double most_elements(const Graph& graph, const std::vector<Box>& boxes, int v) {
  std::int64_t volume = 0;
  for (const Box& box : boxes) volume = std::max(volume, box.volume());
  return static_cast<double>(volume * graph.shape({v}).channels);
}

// Elements that a micro keeps from forward to backward on the stage's first member, which has no smaller tile than the
// others.
double kept_in(const Graph& graph, const Stage& stage, const std::vector<ValueLayout>& layout, Recompute recompute) {
  const Program program(graph, {stage.first_node, stage.end_node}, recompute, [&](int a, int b) {
    return layout[static_cast<std::size_t>(a)].made == layout[static_cast<std::size_t>(b)].made;
  });
  double elements = 0;
  for (std::size_t v = 0; v < program.keep.size(); ++v)
    if (program.keep[v] == Keep::stored && layout[v].used())
      elements += static_cast<double>(layout[v].frame[0].volume() * graph.nodes()[v].shape.channels);
  return elements;
}

// Elements at work in the backward of a stage's largest step, on its largest member: the gradient of what it made, and
// of what it read the gradient and the value made again.
double at_work_in(const Graph& graph, const Stage& stage, const std::vector<ValueLayout>& layout) {
  const auto elements = [&](int v) { return most_elements(graph, layout[static_cast<std::size_t>(v)].frame, v); };
  double most = 0;
  for (int n = stage.first_node; n < stage.end_node; ++n) {
    double sum = elements(n);
    for (const Value input : graph.nodes()[static_cast<std::size_t>(n)].inputs) sum += 2 * elements(input.id);
    most = std::max(most, sum);
  }
  return most;
}

// Elements that come to a stage, or leave it, for one micro and on its largest member. The gradient goes the other way.
double travelling(const Graph& graph, const Layout& layout, int stage) {
  double in = 0, out = 0;
  for (const Transfer& t : layout.transfers) {
    if (t.from == t.to) continue;
    if (t.to == stage) in += most_elements(graph, layout.at(stage, t.value).frame, t.value);
    if (t.from == stage) out += most_elements(graph, layout.at(stage, t.value).owned, t.value);
  }
  return in + out;
}

// Of a stage's values and the optimizer's states: how many such tensors a rank holds. Copies that have them in common
// hold one after the other in turn.
int tensors_held(const Plan& plan, int stage, int rank, const FootprintOptions& options) {
  const int tensors = 1 + options.states;
  if (!options.common) return tensors;
  const auto holds = [&](int r) {
    const auto places = plan.places_of(r);
    return std::any_of(places.begin(), places.end(), [&](const auto& place) { return place.stage == stage; });
  };
  int copies = 0, before = 0;
  for (int r = 0; r < plan.ranks_per_replica(); ++r) {
    copies += holds(r) ? 1 : 0;
    before += r < rank && holds(r) ? 1 : 0;
  }
  copies *= plan.ranks() / plan.ranks_per_replica();
  return tensors / copies + (before < tensors % copies ? 1 : 0);
}

}  // namespace

std::vector<double> predicted_memory(const Plan& plan, const Graph& graph, const FootprintOptions& options) {
  const Layout layout = make_layout(graph, plan);
  std::vector<StageCost> costs = stage_costs(plan, graph);
  std::vector<double> kept_apart, trained, at_work, under_way;  // elements; gradients and statistics apart
  const double parameter_bytes = std::max(options.element_bytes, narrowest_parameter);
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const Stage& stage = plan.stages[s];
    costs[s].live = kept_in(graph, stage, layout.stages[s], options.recompute);
    at_work.push_back(at_work_in(graph, stage, layout.stages[s]));
    under_way.push_back(messages_under_way * travelling(graph, layout, static_cast<int>(s)));
    double statistics = 0, trainable = 0, largest = 0;
    for (int n = stage.first_node; n < stage.end_node; ++n)
      for (const auto& spec : graph.nodes()[static_cast<std::size_t>(n)].parameters) {
        (spec.trainable ? trainable : statistics) += static_cast<double>(spec.elements());
        largest = std::max(largest, static_cast<double>(spec.elements()));
      }
    at_work.back() += weights_at_work * largest;
    kept_apart.push_back(trainable + 2 * statistics);
    trained.push_back(trainable);
  }
  const Simulation simulation = simulate(plan, make_schedule(plan), costs);
  std::vector<double> bytes;
  for (int rank = 0; rank < plan.ranks_per_replica(); ++rank) {
    double elements = simulation.ranks[static_cast<std::size_t>(rank)].live_cost;
    double most_at_work = 0;  // a rank of two places works in one at a time
    std::set<int> stages;
    for (const auto& place : plan.places_of(rank)) {
      stages.insert(place.stage);
      most_at_work = std::max(most_at_work, at_work[static_cast<std::size_t>(place.stage)]);
      elements += under_way[static_cast<std::size_t>(place.stage)];
      // The batch that is trained on, and the one that is read ahead.
      const auto& images = layout.at(place.stage, 0);
      if (images.used())
        elements += 2.0 * static_cast<double>(images.held[0].volume() * graph.shape({0}).channels *
                                              plan.micros(place.direction));
    }
    double sum = (elements + most_at_work) * options.element_bytes;
    for (const int s : stages) {
      const auto at = static_cast<std::size_t>(s);
      sum += (kept_apart[at] + trained[at] * tensors_held(plan, s, rank, options)) * parameter_bytes;
    }
    bytes.push_back(sum);
  }
  return bytes;
}

}  // namespace tessera
