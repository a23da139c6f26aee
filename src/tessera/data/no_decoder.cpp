// In place of vips_decoder.cpp where there is no libvips.
#include "tessera/base/error.h"
#include "tessera/data/image_decoder.h"
#include "tessera/data/label_image.h"
#include "tessera/data/vips_images.h"

namespace tessera {
namespace {

[[noreturn]] void cannot() {
  throw UsageError(
      "this tessera was built without libvips and cannot read image files; install libvips-dev (scripts/install-deps) "
      "and build again, or use --app synthetic or --app cifar");
}

}  // namespace

bool has_vips() { return false; }
std::string vips_version() { return ""; }

void write_label_image(const std::string&, const at::Tensor&, ImageSize) { cannot(); }
void write_picture(const std::string&, const at::Tensor&) { cannot(); }

struct ImageDecoder::Open {};

ImageHeader read_header(const std::string&) { cannot(); }
ImageDecoder::ImageDecoder(const std::string&, const ImageHeader&, const ImageLevel&, PixelKind) { cannot(); }
ImageDecoder::~ImageDecoder() = default;
std::int64_t ImageDecoder::height() const { return 0; }
std::int64_t ImageDecoder::width() const { return 0; }
void ImageDecoder::for_each_row(Interval, Interval, const std::function<void(const void*)>&) { cannot(); }

}  // namespace tessera
