// In place of vips_decoder.cpp where there is no libvips.
#include "tessera/base/error.h"
#include "tessera/data/decoders.h"
#include "tessera/data/label_image.h"
#include "tessera/data/vips_images.h"

namespace tessera {
namespace {

[[noreturn]] void cannot() {
  throw UsageError(
      "this tessera was built without libvips and cannot read or write image files; install libvips-dev "
      "(scripts/install-deps) and build again, or use .npy files, --app synthetic or --app cifar");
}

}  // namespace

bool has_vips() { return false; }
std::string vips_version() { return ""; }

void write_label_image(const std::string&, const at::Tensor&, ImageSize) { cannot(); }
void write_planes(const std::string&, const at::Tensor&) { cannot(); }
void write_picture(const std::string&, const at::Tensor&) { cannot(); }

namespace vips {
ImageHeader read_header(const std::string&) { cannot(); }
std::unique_ptr<ImageDecoder> open(const std::string&, const ImageHeader&, const ImageLevel&, PixelKind) { cannot(); }
}  // namespace vips

}  // namespace tessera
