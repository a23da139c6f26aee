// Runs a command, with a limit to how long it may take.
#pragma once

#include <string>
#include <vector>

namespace tessera::plans {

struct ChildResult {
  int code = 0;            ///< what it returned; -signal if a signal ended it
  bool timed_out = false;  ///< it was ended by us, with everything that it had started
  std::string output;      ///< of stdout and stderr
};

/// Throws Error when the command cannot be started.
ChildResult run_child(const std::vector<std::string>& command, double seconds);

}  // namespace tessera::plans
