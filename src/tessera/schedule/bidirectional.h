// Schedules of two directions: which rules the greedy scheduler tries for each of them.
#pragma once

#include <vector>

#include "tessera/schedule/schedule.h"

namespace tessera {

/// GEMS (Jain et al. 2020), MAST and MASTER: batches in turn down and up, each in the memory that the one before it
/// frees. A rank holds the micros of one batch at most.
std::vector<std::vector<Action>> gems(const Plan& plan);

/// Chimera (Li and Hoefler 2021): both directions at once, each like 1F1B, so that one works where the other waits. A
/// rank holds at most one micro more than there are stages.
std::vector<std::vector<Action>> chimera(const Plan& plan);

}  // namespace tessera
