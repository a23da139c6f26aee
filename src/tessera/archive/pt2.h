#pragma once

#include "tessera/archive/network_file.h"

namespace tessera {

/// Whether it is a file of torch.export.save() of before torch 2.8, whose records are not in a folder: libtorch does
/// not open these.
bool is_old_pt2(const std::string& path);
/// A file of torch.export.save() of torch 2.5 or newer. Throws UsageError.
std::shared_ptr<const NetworkFile> open_pt2(const std::string& path);

}  // namespace tessera
