// How much memory a run takes, and what to do where it does not fit.
#pragma once

#include "job.h"

namespace tessera {

class Launch;

/// What the flags say of memory, for plans of the job's network.
FootprintOptions footprint_for(const Job& job, const Options& options);

/// Bytes that tensors of each rank may take of its GPU: the same on all processes, of which all must call it. `ranks`:
/// of the run.
double free_gpu_memory_of_a_rank(int ranks, const Launch& launch);

/// By rank of a replica.
std::vector<Footprint> memory_needs(const Job& job, const Options& options);

/// Throws UsageError where a rank needs more than --memory-limit.
void check_memory_limit(const Job& job, const Options& options);

/// With --memory, or where a plan would not fit into what the devices have: chooses turns, a store and how far backward
/// recomputes, as far as flags do not say, and puts the choice into the job and the options. Throws UsageError where
/// nothing fits. With a store, decides how much may wait on the device. Collective over the processes of the launch.
void fit_into_memory(Job& job, Options& options, const Launch& launch, std::optional<int> ranks_started);

}  // namespace tessera
