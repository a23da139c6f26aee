// What a data path holds, so that nobody has to say it.
#pragma once

#include <string>

#include "tessera/data/image_list.h"
#include "tessera/data/pixels.h"

namespace tessera {

enum class DataKind { image_files, cifar10 };

/// By the files that are there; none is opened. Throws UsageError, which names what it found and what can be read.
DataKind data_kind_of(const std::string& path);

struct ImageFacts {
  ImageSize size;
  PixelFormat format;
};
/// What must be the same. What need not be, somebody has said.
struct FactsWanted {
  bool size = true, channels = true;
};

/// What all images have in common, from their headers: the size, the number of channels, and whether their numbers are
/// floats. Throws UsageError, which names two that differ; or, where the size is wanted, an image that cannot be read.
ImageFacts common_facts(const ImageList& images, const FactsWanted& wanted = {});

}  // namespace tessera
