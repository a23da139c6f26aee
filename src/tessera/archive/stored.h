// Tensors of files as what import knows of them.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "tessera/import/thing.h"

namespace tessera {

StoredTensor stored_tensor(const std::string& name, const at::Tensor& tensor, bool trained);

}  // namespace tessera
