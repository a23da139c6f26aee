// How a plan fits into the memory of its devices: how far backward computes values again, in how many turns a rank
// works through its tiles, and where things wait. None of it changes a result; each costs time.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tessera/plan/waits.h"
#include "tessera/planner/step_time.h"

namespace tessera {

/// One of them.
struct MemoryWay {
  std::optional<std::string> turns;  ///< as --turns
  bool halo_d2 = false;
  Recompute recompute = Recompute::norm;
  bool store = false;

  Plan plan = {};
  double least = 0;                   ///< the peak if nothing waits on the device
  double room = 0;                    ///< of the device, for what waits
  std::vector<Footprint> needs = {};  ///< by rank
  double seconds = 0;                 ///< of a step, about

  double peak() const;
  double stored() const;  ///< of one rank
};

/// What is given stays as it is; the rest is searched.
struct MemoryWish {
  PlanOptions plan;
  std::optional<int> ranks_started;
  bool turns_given = false, halo_given = false;
  std::optional<Recompute> recompute;
  std::optional<bool> store;    ///< nothing: as is needed
  bool store_possible = false;  ///< there is somewhere to wait
  double memory = 0;            ///< of the device of each rank
  double store_memory = 0;      ///< where things wait, for each rank
  FootprintOptions footprint;   ///< what of it is not chosen here
  Rates rates;
};

struct MemoryChoice {
  std::optional<MemoryWay> best;  ///< the fastest that fits
  MemoryWay fastest;              ///< if memory were no matter
  MemoryWay smallest;             ///< the one that takes least of the device
  /// What a store would have to hold at least, where only that is too small.
  std::optional<double> least_stored;
  int tried = 0;
};

/// Throws UsageError where the plan itself is impossible.
MemoryChoice choose_memory_way(const Graph& graph, const MemoryWish& wish);

/// A way that is given, with as much room for what waits as the memory leaves.
MemoryWay completed(const Graph& graph, const MemoryWish& wish, MemoryWay way);

/// As flags: "--turns 4x4 --halo-D2 --recompute block:2 --store host". `store_name`: the kind of the store.
std::string flags_of(const MemoryWay& way, const std::string& store_name);

}  // namespace tessera
