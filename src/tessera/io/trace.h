// A run's actions as a Chrome trace, which opens in Perfetto or chrome://tracing.
#pragma once

#include <string>

#include "tessera/io/report.h"

namespace tessera {

/// Two processes: what happened, one line per rank, and beside it what the simulator predicts for one step, stretched
/// to the length of the steps that happened. Throws Error.
void write_trace(const std::string& path, const RunReport& report, const Plan& plan, const Graph& graph);

/// timeline.json of a log: the last step that was put down, and the same step as the simulator has it (in a unit of its
/// own, of which `simulated.seconds` is the whole).
void write_timeline(const std::string& path, const RunReport& report, const Plan& plan, const Graph& graph);

}  // namespace tessera
