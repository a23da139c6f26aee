#include "tessera/planner/memory_ways.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/base/index.h"

namespace tessera {
namespace {

// Tiles with fewer rows or columns spend their time on margins.
constexpr std::int64_t smallest_tile = 128;

double most_of(const std::vector<Footprint>& needs, double (*what)(const Footprint&)) {
  double most = 0;
  for (const Footprint& f : needs) most = std::max(most, what(f));
  return most;
}

// In each direction: a look at more takes its time.
constexpr std::int64_t most_turns = 16;

std::vector<std::optional<std::string>> turns_to_try(const Graph& graph, const MemoryWish& wish) {
  if (wish.turns_given) return {wish.plan.turns};
  std::vector<std::optional<std::string>> out{std::nullopt};
  const Shape& image = graph.nodes().front().shape;
  const auto grids = requested_grids(wish.plan);
  const Grid grid = grids.empty() ? Grid{} : grids.front();
  for (std::int64_t n = 2; n <= most_turns; n *= 2) {
    const std::int64_t rows = image.height / (grid.rows * n), columns = image.width / (grid.columns * n);
    if (std::min(rows, columns) < smallest_tile) break;
    out.push_back(concat(n, "x", n));
  }
  return out;
}

std::vector<Recompute> recompute_to_try(const MemoryWish& wish) {
  if (wish.recompute) return {*wish.recompute};
  return {Recompute::norm, {Recompute::block, 1}, {Recompute::block, 2}, {Recompute::block, 3}, {Recompute::block, 5}};
}

}  // namespace

double MemoryWay::peak() const {
  return most_of(needs, [](const Footprint& f) { return f.peak(); });
}
double MemoryWay::stored() const {
  return most_of(needs, [](const Footprint& f) { return f.stored; });
}

MemoryWay completed(const Graph& graph, const MemoryWish& wish, MemoryWay way) {
  FootprintOptions options = wish.footprint;
  options.recompute = way.recompute;
  options.store = way.store;
  options.room = 0;
  way.needs = predicted_memory(way.plan, graph, options);
  way.least = way.peak();
  // What is left when nothing waits on the device is for what waits.
  way.room = way.store ? std::max(0.0, wish.memory - way.least) : 0;
  if (way.room > 0) {
    options.room = way.room;
    way.needs = predicted_memory(way.plan, graph, options);
  }
  const double moved = most_of(way.needs, [](const Footprint& f) { return f.moved; });
  way.seconds = step_seconds(way.plan, graph, way.recompute, options.element_bytes, moved, way.store && way.room == 0,
                             wish.rates);
  return way;
}

namespace {

void try_ways(const Graph& graph, const MemoryWish& wish, MemoryChoice& choice) {
  const auto fits = [&](const MemoryWay& way) {
    return way.peak() <= wish.memory && (!way.store || way.stored() <= wish.store_memory);
  };
  std::vector<bool> stores;
  for (const bool store : {false, true})
    if (wish.store ? store == *wish.store : !store || wish.store_possible) stores.push_back(store);
  for (const bool store : stores)
    for (const Recompute& recompute : recompute_to_try(wish)) {
      bool found = false;
      double smallest = Waits::unlimited;  // of fewer turns
      for (const auto& turns : turns_to_try(graph, wish)) {
        double here = Waits::unlimited;
        for (const bool halo : {false, true}) {
          if (wish.halo_given ? halo != wish.plan.halo_d2 : halo && !turns) continue;
          MemoryWay way{.turns = turns, .halo_d2 = halo, .recompute = recompute, .store = store};
          PlanOptions options = wish.plan;
          options.turns = turns;
          options.halo_d2 = halo;
          try {
            way.plan = make_plan(graph, options, wish.ranks_started);
          } catch (const UsageError&) {
            if (choice.tried == 0) throw;  // it is not for the turns
            continue;
          }
          way = completed(graph, wish, std::move(way));
          ++choice.tried;
          if (choice.fastest.needs.empty() || way.seconds < choice.fastest.seconds) choice.fastest = way;
          if (choice.smallest.needs.empty() || way.least < choice.smallest.least) choice.smallest = way;
          here = std::min(here, way.least);
          if (!fits(way)) {
            if (way.peak() <= wish.memory)
              choice.least_stored = std::min(choice.least_stored.value_or(Waits::unlimited), way.stored());
            continue;
          }
          found = true;
          if (!choice.best || way.seconds < choice.best->seconds) choice.best = way;
        }
        // More turns take more time, and from some point on they save little of the device, and never of a store.
        if (found || here > 0.9 * smallest || here <= wish.memory / 2) break;
        smallest = here;
      }
    }
}

}  // namespace

MemoryChoice choose_memory_way(const Graph& graph, const MemoryWish& wish) {
  MemoryChoice choice;
  try_ways(graph, wish, choice);
  return choice;
}

std::string flags_of(const MemoryWay& way, const std::string& store_name) {
  std::string flags = concat("--recompute ", words_of(way.recompute));
  if (way.turns) flags = concat("--turns ", *way.turns, way.halo_d2 ? " --halo-D2 " : " ", flags);
  if (way.store) flags += concat(" --store ", store_name);
  return flags;
}

}  // namespace tessera
