// How much memory a plan takes, before it is run: the walk of a step through the lifetimes of its tensors.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "tessera/base/read_ahead.h"
#include "tessera/plan/layout.h"
#include "tessera/program/program.h"

namespace tessera {

/// What the kernel of a step takes for an output box and what its first input covers; nothing: what its operation says.
using KernelWorkspace =
    std::function<std::optional<Workspace>(const Step& step, const Box& out, const Box& in, int threads)>;

struct FootprintOptions {
  std::int64_t element_bytes = 4;  ///< of activations; parameters are float32 where these are narrower
  int states = 1;                  ///< tensors that the optimizer keeps of each parameter
  bool common = false;             ///< copies keep values and states in common: see Copies
  bool packed = false;             ///< messages are packed for their way: between machines
  /// Images that are read while others are trained on; nothing: each batch is read when its step begins.
  std::optional<ReadAhead> ahead = ReadAhead{};
  /// Plans that take less are played from a recording (on GPUs), which takes so much beside a place for its images.
  double recorded_below = 0, recording = 0;
  Recompute recompute = Recompute::norm;
  KernelWorkspace workspace = nullptr;
  std::vector<int> threads = {};  ///< of each rank; empty: one
  bool store = false;             ///< what does not stay on the device waits elsewhere
  bool store_prefetches = false;  ///< and comes back while another member is at work
  double room = 0;                ///< with a store: so many bytes may wait on the device
  double leaving = 0;             ///< and so many be on their way out of it
  bool evaluating = false;        ///< forward only, and nothing is kept for a backward
};

/// What a rank holds at the moment when it holds most. Bytes.
struct Footprint {
  double parameters = 0;   ///< with gradients, states of the optimizer and running statistics
  double images = 0;       ///< the batch that is trained on, and those that are read ahead
  double activations = 0;  ///< values, their gradients, what kernels take at work, messages
  double stored = 0;       ///< what waits elsewhere, in a store
  double moved = 0;        ///< what goes to the store and comes back in a step
  double peak() const { return parameters + images + activations; }
};

/// How many micros of a direction are alive at once: between the begin of their forward and the end of their backward.
int micros_alive(const std::vector<struct Action>& actions, Direction direction);

/// By rank of a replica.
std::vector<Footprint> predicted_memory(const Plan& plan, const Graph& graph, const FootprintOptions& options);
/// With the layout of the plan, or that of a sample and its plan.
std::vector<Footprint> predicted_memory(const Plan& plan, const Layout& layout, const Graph& graph,
                                        const FootprintOptions& options);

}  // namespace tessera
