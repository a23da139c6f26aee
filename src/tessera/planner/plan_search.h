// Finds the fastest plan that fits: grids, stages, micros, schedules, replicas and ways of the ranks that there are.
#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tessera/plan/plan_flags.h"
#include "tessera/planner/cell_costs.h"
#include "tessera/planner/forecast.h"
#include "tessera/schedule/footprint.h"

namespace tessera {

/// What is asked for. Flags that are given stay as they are; the search fills in the rest.
struct SearchWish {
  PlanOptions plan;                ///< batch_size: samples of a step, over all copies
  std::set<std::string> given;     ///< flags of `plan` that are not to be changed, without dashes; and "recompute"
  std::vector<int> ranks;          ///< how many there may be; each is tried
  std::int64_t batch_at_most = 0;  ///< the batch may grow up to this; 0: it stays
  double memory = 0;               ///< of each rank; 0: no limit
  FootprintOptions footprint;      ///< what of it is not chosen here
  int cores = 0;                   ///< that ranks of a node share; 0: each has a device
  std::function<int(const Plan&, int stage)> threads;
  std::function<Site(int ranks)> site;  ///< what so many ranks run on
  std::size_t wanted = 8;               ///< so many of the fastest that fit
};

/// A plan, and what is expected of it.
struct Candidate {
  PlanOptions options;
  Recompute recompute = Recompute::norm;
  Plan plan;
  std::vector<StageLoad> loads = {};
  Forecast expected = {};
  std::vector<Footprint> needs = {};  ///< of ranks that stand for all: see Sample
  bool measured = false;              ///< its stages were tried out, not put together from cells

  double images_per_second() const { return expected.images_per_second(plan); }
  double peak() const;
  /// What makes it: "--grid 2x2 --split-size 2 --parts 4".
  PlanFlags flags() const;
};

struct SearchResult {
  std::vector<Candidate> best;  ///< that fit, fastest first
  /// Faster than the first of them, if there were memory for it.
  std::optional<Candidate> too_large;
  /// Where nothing fits: the one that needs least, and the fastest of some kinds, as they would be with memory enough.
  std::optional<Candidate> smallest;
  std::vector<Candidate> large;
  /// The fastest of each of the next few kinds of plan, as far as they fit: "tiles", "pipeline", ...
  std::vector<std::pair<std::string, Candidate>> others;
  int tried = 0;
  int refused = 0;  ///< that the network, its size or the batch does not allow
};
/// Throws UsageError where no plan is possible at all, with what is wrong with the first.
SearchResult search_plans(const Graph& graph, const SearchWish& wish, const CellCosts& costs);

/// Throws the same, and what search_plans() needs no costs to know.
void check_search(const Graph& graph, const SearchWish& wish);

/// "4 tiles", "pipeline of 2 stages", "2 copies of 2x2 tiles": what kind of plan it is, for people.
std::string kind_of(const Plan& plan);

/// Expects again, from loads that are known better by now.
void expect_from(Candidate& candidate, const SearchWish& wish);

}  // namespace tessera
