// How fast a network would train on more and more ranks: the best plan for each number of them.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/planner/plan_search.h"

namespace tessera {

/// "1..4096": from so many ranks to so many. Throws UsageError, which names --scaling.
std::pair<int, int> parse_scaling(const std::string& text);
/// The first, its doubles, and no more than the last: 1 2 4 8.
std::vector<int> doubled(std::pair<int, int> ranks);

struct ScalingPoint {
  int ranks = 0;
  std::int64_t batch = 0;         ///< of a step, over all ranks
  std::optional<Candidate> best;  ///< nothing: none fits
  std::string problem = {};       ///< why
  double images_per_second() const { return best ? best->images_per_second() : 0; }
};

/// What a search finds for one number of ranks and one batch.
using RankSearch = std::function<SearchResult(int ranks, std::int64_t batch)>;

struct Scaling {
  std::vector<ScalingPoint> strong;  ///< the same batch on all
  std::vector<ScalingPoint> weak;    ///< the batch grows with the ranks
};
/// `batch`: of the smallest number of ranks.
Scaling scaling_of(std::pair<int, int> ranks, std::int64_t batch, const RankSearch& search);

/// Images/s per rank, in those of the first point that has a plan. 0 without a plan.
double efficiency(const std::vector<ScalingPoint>& points, std::size_t i);

/// What most of a step's time beside computing goes to, or "computing" where that is little.
std::string limit_of(const Forecast& forecast);

}  // namespace tessera
