// How long a step of training takes on the ranks that there are: the schedule's actions in time, with what ranks wait
// for each other, what messages take, and cores that several ranks share.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tessera/base/meter.h"
#include "tessera/plan/balance.h"
#include "tessera/plan/layout.h"
#include "tessera/schedule/schedule.h"

namespace tessera {

/// How ranks talk.
struct Links {
  double message = 0;          ///< seconds of a message beside its bytes
  double message_bytes = 1e9;  ///< that travel in a second
  double agreement = 0;        ///< seconds of a sum of a few numbers over the ranks of a stage
  double sum_bytes = 1e9;      ///< that are summed over all copies in a second
};

/// What ranks run on.
struct Site {
  int cores = 0;  ///< of a node, for all of its ranks; 0: each rank has a device of its own
  Links links = {};
  std::optional<Links> between = {};  ///< nodes, where these differ
  double update_bytes = 1e9;          ///< of parameters, that a rank's optimizer gets through in a second
  bool common_copies = false;         ///< of a stage's parameters, copies update a part each
  double read = 0;                    ///< seconds of a core, to read an image
};

/// What a member of a stage does for one micro.
struct StageLoad {
  Work seconds;                ///< of computing
  double exchanges = 0;        ///< of margins in forward; as many in backward
  double exchanged_bytes = 0;  ///< in forward
  double agreements = 0;       ///< in forward; as many in backward
  double arriving_bytes = 0;   ///< from earlier stages; as many go back
  double parameter_bytes = 0;  ///< of the stage
  int threads = 1;             ///< that it computes with
};
/// All but the seconds.
std::vector<StageLoad> loads_of(const Graph& graph, const Plan& plan, const Layout& layout, Recompute recompute,
                                std::int64_t element_bytes);

/// When a team is at an action: it computes, exchanges margins and agrees on norms.
struct ActionSpan {
  Action action;
  double begin = 0, end = 0;
};

/// Seconds of a step on the ranks of a team, by what they do, on the clock on the wall: with cores that are shared,
/// work takes longer.
struct TeamForecast {
  Interval ranks;  ///< of a replica
  double computing = 0;
  PartSeconds parts = {};  ///< transfers are in what others wait for
  std::vector<ActionSpan> actions = {};
  double& operator[](Part part) { return parts[static_cast<std::size_t>(part)]; }
  double operator[](Part part) const { return parts[static_cast<std::size_t>(part)]; }
};

struct Forecast {
  double seconds = 0;    ///< of a step
  double computing = 0;  ///< of it, on a rank, in the mean
  double talking = 0;    ///< margins, agreements and transfers, likewise
  double summing = 0;    ///< gradients over copies
  double updating = 0;   ///< the optimizer
  double reading = 0;    ///< images, as far as the step is longer for it
  std::vector<TeamForecast> teams = {};
  double waiting() const { return seconds - computing - talking - summing - updating - reading; }
  double images_per_second(const Plan& plan) const { return static_cast<double>(plan.global_batch()) / seconds; }
};
/// `recorded`: with the actions of the teams, which for large plans are many.
Forecast forecast(const Plan& plan, std::span<const StageLoad> loads, const Site& site, bool recorded = false);

}  // namespace tessera
