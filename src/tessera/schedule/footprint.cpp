#include "tessera/schedule/footprint.h"

#include <algorithm>
#include <map>

#include "tessera/base/index.h"
#include "tessera/schedule/member_walk.h"

namespace tessera {
namespace {

// Bytes. Activations may be narrower.
constexpr std::int64_t narrowest_parameter = 4;

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

// Values, gradients, states; running statistics have a count (8 bytes) and a decay (8 bytes) each, beside their sum.
double parameter_bytes(const Plan& plan, const Graph& graph, int stage, int rank, const FootprintOptions& options) {
  const double wide = static_cast<double>(std::max(options.element_bytes, narrowest_parameter));
  constexpr std::int64_t aligned = 16;  // elements: each parameter begins a cache line
  double trainable = 0, statistics = 0;
  const Stage& s = plan.stages[index(stage)];
  for (int n = s.first_node; n < s.end_node; ++n)
    for (const auto& spec : graph.nodes()[index(n)].parameters)
      (spec.trainable ? trainable : statistics) +=
          static_cast<double>((spec.elements() + aligned - 1) / aligned * aligned);
  double bytes = trainable * (1 + tensors_held(plan, stage, rank, options)) * wide + statistics * (2 * wide + 16);
  if (options.element_bytes < narrowest_parameter) bytes += trainable * static_cast<double>(options.element_bytes);
  return bytes;
}

}  // namespace

std::vector<Footprint> predicted_memory(const Plan& plan, const Graph& graph, const FootprintOptions& options) {
  const Layout layout = make_layout(graph, plan);
  const auto schedule = make_schedule(plan);
  std::vector<Footprint> out;
  for (int rank = 0; rank < plan.ranks_per_replica(); ++rank) {
    Footprint& mine = out.emplace_back();
    Ledger ledger;
    Buffers buffers(ledger);
    std::map<Direction, MemberWalk> members;
    std::vector<int> stages;
    for (const auto& place : plan.places_of(rank)) {
      members.try_emplace(place.direction, graph, plan, layout, place, options, ledger, buffers);
      if (std::find(stages.begin(), stages.end(), place.stage) == stages.end()) stages.push_back(place.stage);
      const auto& images = layout.at(place.stage, 0);
      if (images.used())
        mine.images += static_cast<double>((1 + options.batches_ahead) * images.held[index(place.member)].volume() *
                                           graph.shape({0}).channels * plan.micros(place.direction) *
                                           std::max(options.element_bytes, narrowest_parameter));
    }
    for (const int stage : stages) mine.parameters += parameter_bytes(plan, graph, stage, rank, options);
    const auto& actions = schedule[index(rank)];
    const auto worker = [&](const Action& action) -> MemberWalk& { return members.at(action.direction); };
    // As the trainer does: receives of the next two actions are posted before an action starts.
    constexpr std::size_t ahead = 2;
    // The second step finds the buffers that the first has left.
    for (int step = 0; step < 2; ++step)
      for (std::size_t i = 0; i < actions.size(); ++i) {
        if (actions[i].kind == Action::Kind::step) continue;
        for (std::size_t next = i + 1; next < std::min(i + 1 + ahead, actions.size()); ++next)
          if (actions[next].kind != Action::Kind::step && actions[next].kind != Action::Kind::weight_gradient)
            worker(actions[next]).expect(actions[next]);
        worker(actions[i]).run(actions[i]);
      }
    mine.activations = ledger.peak();
  }
  return out;
}

}  // namespace tessera
