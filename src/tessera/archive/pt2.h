#pragma once

#include "tessera/archive/network_file.h"

namespace tessera {

/// A file of torch.export.save() of torch 2.8 or newer. Throws UsageError.
std::shared_ptr<const NetworkFile> open_pt2(const std::string& path);

}  // namespace tessera
