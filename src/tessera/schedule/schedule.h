// A schedule is data: for each rank, the list of what it does in a step, in order.
#pragma once

#include <ostream>
#include <vector>

#include "tessera/plan/plan.h"

namespace tessera {

struct Action {
  enum class Kind { forward, backward, step };
  Kind kind;
  int stage = 0;
  int micro = 0;
  friend bool operator==(const Action&, const Action&) = default;
};

/// "F0", "B3", "S".
std::ostream& operator<<(std::ostream& out, const Action& action);

/// The actions of one step of training for a rank.
std::vector<Action> schedule_for(const Plan& plan, int rank);

}  // namespace tessera
