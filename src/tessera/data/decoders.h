// Who decodes a file: NumPy's arrays by ourselves, everything else by libvips (vips_decoder.cpp) or, where that is
// missing, by nobody (no_decoder.cpp; CMake chooses).
#pragma once

#include "tessera/data/image_decoder.h"

namespace tessera {

namespace npy {
/// What ImageHeader::loader says of an array.
constexpr const char* loader = "npy";
ImageHeader read_header(const std::string& path, std::int64_t item, bool mask);
std::unique_ptr<ImageDecoder> open(const std::string& path, std::int64_t item, PixelKind kind);

struct Integers {
  std::vector<std::int64_t> shape, values;
};
/// A small array of integers: labels. Throws Error that names the file.
Integers read_integers(const std::string& path);
}  // namespace npy

namespace vips {
ImageHeader read_header(const std::string& path);
std::unique_ptr<ImageDecoder> open(const std::string& path, const ImageHeader& header, const ImageLevel& level,
                                   PixelKind kind);
}  // namespace vips

}  // namespace tessera
