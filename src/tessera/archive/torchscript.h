#pragma once

#include "tessera/archive/network_file.h"

namespace tessera {

/// Throws UsageError.
std::shared_ptr<const NetworkFile> open_torchscript(const std::string& path);

}  // namespace tessera
