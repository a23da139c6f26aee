// How images come to the device that computes with them.
#pragma once

#include "tessera/data/loader.h"

namespace tessera {

/// A GPU's small images are read far ahead: a step on them is shorter than reading one may take.
ReadAhead read_ahead(bool on_gpu);

/// What trainers and evaluators ask of every loader: images of this type and on this device, read ahead by so many
/// threads. To a GPU they travel as bytes where they are bytes.
LoaderOptions delivered_as(const at::TensorOptions& activations, int workers);

}  // namespace tessera
