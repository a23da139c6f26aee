#pragma once

#include "tessera/models/registry.h"

namespace tessera {

/// AmoebaNet-D: a stem, two reduction cells, then three runs of num_layers/3 normal cells with a reduction cell
/// between. Channels start at num_filters/4 and double at each reduction.
Graph amoebanet(const ModelOptions& options);

}  // namespace tessera
