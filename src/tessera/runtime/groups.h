// Which ranks have to agree in the middle of a pass.
#pragma once

#include <memory>

#include "tessera/comm/communicator.h"
#include "tessera/plan/plan.h"

namespace tessera {

/// As Communicator::split, but null for a group of one: it has nobody to agree with. Collective.
std::unique_ptr<Communicator> group_of(Communicator* world, int color, int key);

/// The ranks that hold tiles of the same samples; the first has the upper left one. Collective.
std::unique_ptr<Communicator> tile_group(Communicator* world, const Plan& plan, const Plan::Place& place, int replica);

}  // namespace tessera
