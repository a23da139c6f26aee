// A simulated step as text, for people.
#pragma once

#include <string>

#include "tessera/schedule/simulator.h"

namespace tessera {

/// One line per rank, time to the right, then what is predicted: how long ranks wait and how many micros live on them.
///
///     rank 0  F0F1F2........B0--F3B1--..B2--..B3--
///     rank 1  ..F0F1....B0--F2B1--F3B2--..B3--....
///     rank 2  ....F0B0--F1B1--F2B2--F3B3--........
///
/// Direction up has small letters. Where a picture of at most `columns` has no room for whole numbers, micros are shown
/// by their last digit, or not at all.
std::string timeline(const Plan& plan, const Simulation& simulation, int columns = 220);

}  // namespace tessera
