#include "tessera/data/image_decoder.h"

#include "tessera/data/decoders.h"
#include "tessera/data/files.h"

namespace tessera {

ImageHeader read_header(const std::string& path) {
  return files::ending_of(path) == "npy" ? npy::read_header(path) : vips::read_header(path);
}

std::unique_ptr<ImageDecoder> open_image(const std::string& path, const ImageHeader& header, const ImageLevel& level,
                                         PixelKind kind) {
  return header.loader == npy::loader ? npy::open(path, kind) : vips::open(path, header, level, kind);
}

}  // namespace tessera
