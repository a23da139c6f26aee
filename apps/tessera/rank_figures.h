// What every rank knows of the run, on the process that tells the user.
#pragma once

#include "tessera/comm/communicator.h"
#include "tessera/io/report.h"

namespace tessera {

/// What a rank has to tell.
struct RankFigures {
  const std::vector<StepReport>& steps;
  std::int64_t peak_bytes = 0;
  const std::vector<TraceEvent>& events;
  const std::vector<PartSpan>& spans;
};

/// Fills in what the report has by rank. Collective; the report is filled in on all of them.
void gather_figures(const RankFigures& mine, Communicator& world, RunReport& report);

}  // namespace tessera
