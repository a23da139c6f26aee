// About how long a step takes, from what its steps compute and move: enough to tell which of two ways is faster.
#pragma once

#include "tessera/schedule/footprint.h"

namespace tessera {

/// What a device does in a second.
struct Rates {
  double flops = 1, bytes = 1;  ///< that it computes; that it reads and writes
  double store_bytes = 1;       ///< that go to a store or come back
  double start = 0;             ///< seconds that it takes to begin a kernel
  bool store_beside = false;    ///< a store's copies go on beside the kernels
};
/// Of one core, or of a GPU of today. Known to a factor; their ratios are what counts.
Rates usual_rates(bool gpu, int threads, std::int64_t element_bytes);

/// Seconds of the busiest rank, without waits for others. `moved`: bytes of a step that go to a store or come back.
double step_seconds(const Plan& plan, const Graph& graph, Recompute recompute, std::int64_t element_bytes, double moved,
                    bool store, const Rates& rates);

}  // namespace tessera
