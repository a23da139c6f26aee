// How fast the ranks of a run talk to each other, on the machines and the transport that they have.
#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/comm/communicator.h"
#include "tessera/planner/forecast.h"

namespace tessera {

/// Collective over the group; about a tenth of a second. The same on all ranks: what the slowest saw. `where`: the type
/// and the device of what travels.
Links try_links(Communicator& group, const at::TensorOptions& where);

}  // namespace tessera
