// Runs a foreign program operator by operator on ATen: what a network of a .pt2 file is compared with.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "tessera/archive/network_file.h"

namespace tessera {

/// The program must outlive it. `tensors` are copied, and floating point ones become numbers of this type.
std::unique_ptr<ForeignNetwork> interpreted(const ForeignProgram& program,
                                            const std::map<std::string, at::Tensor>& tensors,
                                            const at::TensorOptions& options);

}  // namespace tessera
