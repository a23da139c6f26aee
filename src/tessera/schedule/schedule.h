// A schedule is data: for each rank, the list of what it does in a step, in order.
//
// Values travel inside the actions: a forward sends what later stages need as soon as it is made, and waits for what it
// needs itself; a backward does the same for gradients. So there are no actions of their own for messages; the
// simulator knows them as dependencies.
#pragma once

#include <ostream>
#include <vector>

#include "tessera/plan/plan.h"

namespace tessera {

struct Action {
  enum class Kind {
    forward,
    backward,         ///< both gradients
    input_gradient,   ///< what the stage before waits for
    weight_gradient,  ///< the rest; follows an input_gradient of the same micro at any distance
    step,             ///< gradients are summed over all copies, the optimizer moves
  };
  Kind kind = Kind::step;
  int stage = 0;
  int micro = 0;  ///< counted within the direction, over all batches of a step
  Direction direction = Direction::down;
  friend bool operator==(const Action&, const Action&) = default;
};

/// "F0", "B3", "I1", "W1", "S"; direction up has a quote: "F0'".
std::ostream& operator<<(std::ostream& out, const Action& action);

/// The actions of one step of training, by rank within a replica. Every rank ends in one `step`.
std::vector<std::vector<Action>> make_schedule(const Plan& plan);

/// Neighbouring ranks of a replica that do the same things: the tiles and ways of a stage; with two directions, those
/// that are together in both. A plan of thousands of ranks has few teams.
struct Team {
  Interval ranks;
  std::vector<Action> actions;  ///< of each of them
};
/// The same as make_schedule(), with every list once.
std::vector<Team> make_teams(const Plan& plan);

/// The actions of a pass in which nothing is learned: `micros` forwards of direction down, in which every rank has a
/// place. By rank within a replica.
std::vector<std::vector<Action>> make_forward_schedule(const Plan& plan, int micros);

}  // namespace tessera
