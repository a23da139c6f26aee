// What a data path holds, so that nobody has to say it.
#pragma once

#include <string>

#include "tessera/data/image_list.h"

namespace tessera {

enum class DataKind { image_files, cifar10 };

/// By the files that are there; none is opened. Throws UsageError, which names what it found and what can be read.
DataKind data_kind_of(const std::string& path);

/// The size that all images have, from their headers. Throws UsageError, which names two that differ, or an image that
/// cannot be read.
ImageSize common_size(const ImageList& images);

}  // namespace tessera
