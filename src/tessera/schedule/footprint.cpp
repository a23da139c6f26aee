#include "tessera/schedule/footprint.h"

#include <algorithm>
#include <map>

#include "tessera/base/index.h"
#include "tessera/schedule/schedule.h"
#include "tessera/schedule/stage_walk.h"

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
  if (options.evaluating) return (trainable + statistics) * wide;
  double bytes = trainable * (1 + tensors_held(plan, stage, rank, options)) * wide + statistics * (2 * wide + 16);
  if (options.element_bytes < narrowest_parameter) bytes += trainable * static_cast<double>(options.element_bytes);
  return bytes;
}

// A batch of images, and how many there are with those that are read ahead. With turns they come tile by tile, and what
// a tile keeps of its images is a value.
struct Images {
  std::int64_t bytes = 0, count = 0;
};
Images images_of(const Plan& plan, const Graph& graph, const Layout& layout, const std::vector<Plan::Place>& places,
                 const FootprintOptions& options) {
  const ValueLayout& images = layout.at(places[0].stage, 0);
  if (!images.used()) return {};
  std::int64_t pixels = 0;
  for (const auto& place : places) pixels = std::max(pixels, images.held[index(place.member)].volume());
  const bool whole = places.size() == 1;
  const std::int64_t micros = plan.micros(places[0].direction);
  const std::int64_t piece = pixels * graph.shape({0}).channels * (whole ? micros : 1) * options.element_bytes;
  const std::int64_t ahead = options.ahead ? options.ahead->pieces(piece, whole ? 1 : micros * std::ssize(places)) : 0;
  return {piece, 1 + ahead};
}

}  // namespace

int micros_alive(const std::vector<Action>& actions, Direction direction) {
  int alive = 0, most = 1;
  const bool apart = std::any_of(actions.begin(), actions.end(),
                                 [](const Action& a) { return a.kind == Action::Kind::weight_gradient; });
  for (const Action& action : actions) {
    if (action.kind == Action::Kind::step || action.direction != direction) continue;
    if (action.kind == Action::Kind::forward) most = std::max(most, ++alive);
    if (action.kind == (apart ? Action::Kind::weight_gradient : Action::Kind::backward)) --alive;
  }
  return most;
}

std::vector<Footprint> predicted_memory(const Plan& plan, const Graph& graph, const FootprintOptions& options) {
  return predicted_memory(plan, make_layout(graph, plan), graph, options);
}

std::vector<Footprint> predicted_memory(const Plan& plan, const Layout& layout, const Graph& graph,
                                        const FootprintOptions& options) {
  const auto schedule = make_schedule(plan);
  std::vector<Footprint> out;
  for (int rank = 0; rank < plan.ranks_per_replica(); ++rank) {
    Footprint& mine = out.emplace_back();
    Ledger ledger;
    Buffers buffers(ledger);
    std::map<Direction, StageWalk> members;
    std::vector<int> stages;
    double batch = 0;
    const auto& actions = schedule[index(rank)];
    for (const auto& first : plan.first_places_of(rank)) {
      std::vector<Plan::Place> places;
      for (const auto& place : plan.places_of(rank))
        if (place.direction == first.direction) places.push_back(place);
      const int alive = micros_alive(actions, first.direction);
      const int threads = options.threads.empty() ? 1 : options.threads[index(rank)];
      members.try_emplace(first.direction, graph, plan, layout, places, options, threads, alive, ledger, buffers);
      if (std::find(stages.begin(), stages.end(), first.stage) == stages.end()) stages.push_back(first.stage);
      const Images images = images_of(plan, graph, layout, places, options);
      mine.images += static_cast<double>(images.bytes * images.count);
      batch += static_cast<double>(images.bytes);
    }
    for (const int stage : stages) mine.parameters += parameter_bytes(plan, graph, stage, rank, options);
    const auto worker = [&](const Action& action) -> StageWalk& { return members.at(action.direction); };
    // As the trainer does: receives of the next two actions are posted before an action starts.
    constexpr std::size_t ahead = 2;
    // The second step finds the buffers that the first has left.
    for (int step = 0; step < 2; ++step)
      for (std::size_t i = 0; i < actions.size(); ++i) {
        if (actions[i].kind == Action::Kind::step || (options.evaluating && actions[i].kind != Action::Kind::forward))
          continue;
        for (std::size_t next = i + 1; next < std::min(i + 1 + ahead, actions.size()); ++next)
          if (actions[next].kind != Action::Kind::step && actions[next].kind != Action::Kind::weight_gradient &&
              !options.evaluating)
            worker(actions[next]).expect(actions[next]);
        worker(actions[i]).run(actions[i]);
        if (options.evaluating) worker(actions[i]).forget(actions[i]);
      }
    mine.activations = ledger.peak();
    if (plan.repeats_itself() && !options.store && !options.evaluating && mine.peak() < options.recorded_below) {
      mine.images += batch;
      mine.activations += options.recording;
    }
    if (!options.store) continue;
    mine.activations += options.leaving;
    for (const auto& [direction, walk] : members) {
      mine.stored += walk.waits().most_away();
      mine.moved += static_cast<double>(plan.micros(direction)) * walk.waits().bytes_moved();
    }
  }
  return out;
}

}  // namespace tessera
