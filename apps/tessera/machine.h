// --machine: the description of a machine that is not here, for plans.
#pragma once

#include <string>

#include "tessera/planner/forecast.h"
#include "tessera/planner/step_time.h"

namespace tessera {

struct Machine {
  std::string name;
  std::int64_t ranks_per_node = 1;
  double memory = 0;  ///< of a rank, bytes
  Rates rates;
  Site site;
};
/// Throws UsageError that names the file and what is wrong with it. `dtype`: of the run.
Machine read_machine(const std::string& path, const std::string& dtype);

}  // namespace tessera
