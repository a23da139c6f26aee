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

bool needs_more_than(double memory, const Job& job, const Options& options);

/// Throws UsageError where a rank needs more than --memory-limit.
void check_memory_limit(const Job& job, const Options& options);

/// How many times as long as with memory without end a step of the job's plan takes in the memory that there is, about;
/// nothing where it cannot be made to fit. Collective over the processes of the launch.
std::optional<double> slowdown_to_fit(const Job& job, const Options& options, const Launch& launch);

/// With --memory, or where a plan would not fit into what the devices have: chooses turns, a store and how far backward
/// recomputes, as far as flags do not say, and puts the choice into the job and the options. Throws UsageError where
/// nothing fits. With a store, decides how much may wait on the device. Collective over the processes of the launch.
void fit_into_memory(Job& job, Options& options, const Launch& launch);

/// Whether it would do anything: for machines that are not here, and what a CPU may take, --memory has to say it.
bool fits_into_memory(const Options& options);

}  // namespace tessera
