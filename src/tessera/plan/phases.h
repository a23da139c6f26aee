// A stage's steps in phases. Within one, no member of the stage looks at what another makes in the same phase, so a
// rank that has several members (turns) takes one after the other through a phase, and all of them before the next
// begins.
#pragma once

#include <vector>

#include "tessera/plan/layout.h"

namespace tessera {

/// Steps [first, end) of forward, or the same backwards. An agreed step is cut in two: the phase before makes the offer
/// (of the step behind it, in the order of its pass), and the next begins with what came of it.
struct Phase {
  std::size_t first = 0, end = 0;
  bool offers = false;
};

/// The phases of forward, then those of backward, and when something is looked at: by the number of a phase.
struct Phases {
  std::vector<Phase> forward, backward;

  int count() const { return static_cast<int>(forward.size() + backward.size()); }
  int first_of_backward() const { return static_cast<int>(forward.size()); }

  /// In which phases a member has something in hand, in order. Between two of them it waits.
  std::vector<std::vector<int>> values;     ///< by value
  std::vector<std::vector<int>> gradients;  ///< by value
  std::vector<std::vector<int>> saved;      ///< by step: what forward leaves for backward beside values
  /// By value: what lies between forward and backward is no wait, because it is made again.
  std::vector<bool> made_again;
};

Phases phases_of(const Program& program, const Layout& layout, int stage);

}  // namespace tessera
