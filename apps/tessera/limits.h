// Numbers that are too large to be meant.
#pragma once

#include "options.h"

namespace tessera {

constexpr std::int64_t most_channels = 65536;

/// What a typing error would make of the flags: more threads than the machine can start, a network that takes minutes
/// to write down. `cores`: of this machine. Throws UsageError, before anything is made of them.
void check_limits(const Options& options, int cores);

/// What a rank computes with, where so many share the cores.
int threads_of_rank(const Options& options, int cores, std::int64_t ranks);

/// Ranks that are threads of one process. Throws UsageError.
void check_thread_ranks(int ranks);

}  // namespace tessera
