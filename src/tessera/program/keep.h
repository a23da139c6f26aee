// What backward finds of every value.
#pragma once

#include "tessera/program/program.h"

namespace tessera {

/// By value. Decides, too, where point-wise steps read the derivative of their activation (Pointwise::by_output).
std::vector<Keep> decide_keep(const Graph& graph, std::vector<Step>& steps, Recompute recompute);

}  // namespace tessera
