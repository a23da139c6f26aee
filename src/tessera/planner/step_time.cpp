#include "tessera/planner/step_time.h"

#include <algorithm>

#include "tessera/base/index.h"
#include "tessera/plan/phases.h"

namespace tessera {
namespace {

// What one member of a stage computes for one micro.
double member_seconds(const Graph& graph, const Layout& layout, const Program& program, const Phases& phases,
                      const Plan::Place& place, std::int64_t element_bytes, bool store, const Rates& rates) {
  double seconds = 0;
  for (const Step& step : program.steps) {
    const Box& made = layout.at(place.stage, step.output).made[index(place.member)];
    if (made.empty()) continue;
    const Box whole = graph.shape({step.output}).box({0, 1});
    const double share = static_cast<double>(made.volume()) / static_cast<double>(whole.volume());
    const Node& node = graph.node({step.node});
    const Cost cost = graph.cost(node, 1);
    double elements = static_cast<double>(graph.shape({step.output}).elements());
    for (const int v : step.inputs) elements += static_cast<double>(graph.shape({v}).elements());
    const double bytes = elements * static_cast<double>(element_bytes);
    const auto pass = [&](double flops, double times_moved) {
      return std::max(flops / rates.flops, times_moved * bytes / rates.bytes) * share + rates.start;
    };
    const double forward = pass(cost.forward_flops, 1);
    double times = 1;
    // Made again: once, or in every phase of backward that looks at it.
    if (program.keep[index(step.output)] == Keep::recomputed) {
      const auto& looks = phases.values[index(step.output)];
      const auto again =
          std::count_if(looks.begin(), looks.end(), [&](int p) { return p >= phases.first_of_backward(); });
      times += program.light[index(step.output)] && store ? static_cast<double>(again)
                                                          : std::min<double>(1, static_cast<double>(again));
    }
    if (store && program.light_in_forward[index(step.output)]) times += 1;
    seconds += times * forward + pass(cost.input_gradient_flops, 1.5);
    if (!step.pointwise && cost.weight_gradient_flops > 0) seconds += pass(cost.weight_gradient_flops, 1);
  }
  return seconds;
}

}  // namespace

Rates usual_rates(bool gpu, int threads, std::int64_t element_bytes) {
  if (gpu)
    return {.flops = element_bytes <= 2   ? 350e12
                     : element_bytes == 4 ? 40e12
                                          : 30e12,
            .bytes = 3e12,
            .store_bytes = 40e9,
            .start = 8e-6,
            .store_beside = true};
  const double cores = std::max(1, threads);
  return {
      .flops = cores * (element_bytes == 4 ? 60e9 : 25e9), .bytes = cores * 6e9, .store_bytes = 1e9, .start = 20e-6};
}

double step_seconds(const Plan& plan, const Graph& graph, Recompute recompute, std::int64_t element_bytes, double moved,
                    bool store, const Rates& rates) {
  const Layout layout = make_layout(graph, plan);
  double most = 0;
  for (int rank = 0; rank < plan.ranks_per_replica(); ++rank) {
    double mine = 0;
    for (const auto& first : plan.first_places_of(rank)) {
      const Program program = stage_program(graph, plan, layout, first.stage, recompute);
      const Phases phases = phases_of(program, layout, first.stage);
      double micro = 0;
      for (const auto& place : plan.places_of(rank))
        if (place.direction == first.direction)
          micro += member_seconds(graph, layout, program, phases, place, element_bytes, store, rates);
      mine += static_cast<double>(plan.micros(first.direction)) * micro;
    }
    most = std::max(most, mine);
  }
  const double bus = moved / rates.store_bytes;
  return rates.store_beside ? std::max(most, bus) : most + bus;
}

}  // namespace tessera
