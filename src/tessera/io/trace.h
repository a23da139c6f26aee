// A run's actions as a Chrome trace, which opens in Perfetto or chrome://tracing.
#pragma once

#include <string>

#include "tessera/io/report.h"

namespace tessera {

/// Two processes: what happened, a line a rank, and beside it what the simulator predicts for one step, stretched to
/// the length of the steps that happened. Throws Error.
void write_trace(const std::string& path, const RunReport& report, const Plan& plan, const Graph& graph);

}  // namespace tessera
