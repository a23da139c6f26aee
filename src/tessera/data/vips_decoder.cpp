#include <unistd.h>
#include <vips/vips.h>

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <mutex>

#include "tessera/base/error.h"
#include "tessera/data/decoders.h"
#include "tessera/data/label_image.h"
#include "tessera/data/palette.h"
#include "tessera/data/vips_images.h"

namespace tessera {
namespace {

struct Unref {
  void operator()(void* object) const { g_object_unref(object); }
};
using ImagePtr = std::unique_ptr<VipsImage, Unref>;
using RegionPtr = std::unique_ptr<VipsRegion, Unref>;

constexpr std::int64_t slide_band_rows = 512;
constexpr std::int64_t strip_bytes = 4 << 20, most_strip_rows = 256, fewest_strip_rows = 8;

/// Every function that calls libvips has one of these first.
class UsesVips {
 public:
  UsesVips() {
    static std::once_flag once;
    std::call_once(once, [] {
      if (vips_init("tessera") != 0) throw Error(concat("libvips does not start: ", vips_error_buffer()));
      // Files are opened anew for each read; a cache of open ones would only hold memory.
      vips_cache_set_max(0);
      // Warnings are for people with one image; with thousands, errors are enough.
      g_log_set_handler(
          "VIPS", G_LOG_LEVEL_WARNING, [](const char*, GLogLevelFlags, const char*, void*) {}, nullptr);
    });
    // libvips keeps buffers for each thread, and hears of the end of its own threads only.
    struct AtThreadEnd {
      ~AtThreadEnd() { vips_thread_shutdown(); }
    };
    thread_local const AtThreadEnd at_thread_end;
  }
};

[[noreturn]] void bad_image(const std::string& path, const std::string& what) {
  throw Error(concat("image '", path, "' ", what));
}

/// With what libvips has to say. Its messages are shared by all threads: when two fail at once, one has them both.
[[noreturn]] void vips_failed(const std::string& path, const std::string& what) {
  if (::access(path.c_str(), F_OK) == 0 && ::access(path.c_str(), R_OK) != 0) {
    vips_error_clear();
    bad_image(path, concat("cannot be read: ", std::strerror(EACCES)));
  }
  char* text = vips_error_buffer_copy();
  std::string reason = text;
  g_free(text);
  while (!reason.empty() && (reason.back() == '\n' || reason.back() == ' ')) reason.pop_back();
  std::replace(reason.begin(), reason.end(), '\n', ';');
  bad_image(path, concat(what, reason.empty() ? "" : ": ", reason));
}

/// Tiles and slides can be read at any place.
bool any_place(const std::string& path, const std::string& loader) {
  return vips_foreign_flags(loader.c_str(), path.c_str()) & VIPS_FOREIGN_PARTIAL;
}

ImagePtr load(const std::string& path, const std::string& loader, const ImageLevel& level) {
  VipsImage* image = nullptr;
  if (vips_call(loader.c_str(), path.c_str(), &image, "access",
                any_place(path, loader) ? VIPS_ACCESS_RANDOM : VIPS_ACCESS_SEQUENTIAL, "fail_on", VIPS_FAIL_ON_ERROR,
                level.option.empty() ? nullptr : level.option.c_str(), level.number, nullptr) != 0)
    vips_failed(path, "cannot be opened; it is damaged or cut short");
  return ImagePtr(image);
}

/// In tiles, compressed without loss, by way of a file with another name.
void save_tiff(const std::string& path, const ImagePtr& image) {
  const std::string temporary = path + ".part";
  // Differences of neighbours make labels shorter and floats no longer readable to all.
  const int predictor = image && vips_image_get_format(image.get()) == VIPS_FORMAT_FLOAT
                            ? VIPS_FOREIGN_TIFF_PREDICTOR_NONE
                            : VIPS_FOREIGN_TIFF_PREDICTOR_HORIZONTAL;
  // No larger than the image: tiles are written whole.
  const auto tile = [](int side) { return std::min(256, (side + 15) / 16 * 16); };
  if (!image ||
      vips_tiffsave(image.get(), temporary.c_str(), "tile", TRUE, "tile_width", tile(vips_image_get_width(image.get())),
                    "tile_height", tile(vips_image_get_height(image.get())), "compression",
                    VIPS_FOREIGN_TIFF_COMPRESSION_DEFLATE, "predictor", predictor, "bigtiff", TRUE, nullptr) != 0) {
    std::remove(temporary.c_str());
    vips_failed(path, "cannot be written; is the disk full?");
  }
  if (std::rename(temporary.c_str(), path.c_str()) != 0) bad_image(path, "cannot be written");
}

int number_in(VipsImage* image, const char* field) {
  int number = 0;
  if (vips_image_get_typeof(image, field) == 0 || vips_image_get_int(image, field, &number) != 0) return 0;
  return number;
}

/// Levels are halved, or the like, and rounded up or down; only what does not look like that is a fraction.
double shrink_between(std::int64_t whole, std::int64_t level) {
  const std::int64_t factor = (2 * whole + level) / (2 * level);
  const bool rounded = level == whole / factor || level == (whole + factor - 1) / factor;
  return rounded ? static_cast<double>(factor) : static_cast<double>(whole) / static_cast<double>(level);
}

/// Adds level `number` if it is a smaller version of the one before it, not another picture.
bool add_level(ImageHeader& header, const std::string& path, const std::string& option, int number) {
  ImageLevel level{.option = option, .number = number};
  const ImagePtr image = load(path, header.loader, level);
  const std::int64_t height = vips_image_get_height(image.get()), width = vips_image_get_width(image.get());
  level.row_shrink = shrink_between(header.height, height);
  level.column_shrink = shrink_between(header.width, width);
  const double off_by = std::abs(level.row_shrink / level.column_shrink - 1);
  const bool same_shape = off_by <= 1.5 / static_cast<double>(height) + 1.5 / static_cast<double>(width);
  if (!same_shape || level.row_shrink <= header.levels.back().row_shrink ||
      level.column_shrink <= header.levels.back().column_shrink)
    return false;
  header.levels.push_back(level);
  return true;
}

void add_levels(ImageHeader& header, const std::string& path, VipsImage* image) {
  const auto made_by = [&](const char* name) { return header.loader.find(name) != std::string::npos; };
  const auto add_all = [&](const std::string& option, int first, int end) {
    for (int i = first; i < end; ++i)
      if (!add_level(header, path, option, i)) return;
  };
  if (made_by("Jpeg")) {
    for (const int shrink : {2, 4, 8})
      header.levels.push_back(
          {.option = "shrink", .number = shrink, .row_shrink = double(shrink), .column_shrink = double(shrink)});
  } else if (made_by("Tiff")) {
    if (const int subifds = number_in(image, VIPS_META_N_SUBIFDS); subifds > 0)
      add_all("subifd", 0, subifds);
    else
      add_all("page", 1, number_in(image, VIPS_META_N_PAGES));
  } else if (made_by("Jp2k")) {
    add_all("page", 1, number_in(image, VIPS_META_N_PAGES));
  } else if (made_by("OpenSlide") || made_by("Openslide")) {
    const char* count = nullptr;
    if (vips_image_get_string(image, "openslide.level-count", &count) == 0) add_all("level", 1, std::atoi(count));
  }
}

using Step = std::function<int(VipsImage* in, VipsImage** out)>;

ImagePtr apply(const std::string& path, ImagePtr image, const Step& step) {
  VipsImage* out = nullptr;
  if (step(image.get(), &out) != 0) vips_failed(path, "cannot be converted");
  return ImagePtr(out);
}

ImagePtr on_white(const std::string& path, ImagePtr image) {
  if (!vips_image_hasalpha(image.get())) return image;
  return apply(path, std::move(image), [](VipsImage* in, VipsImage** out) {
    const VipsBandFormat format = vips_image_get_format(in);
    const double white = format == VIPS_FORMAT_USHORT ? 65535 : format == VIPS_FORMAT_FLOAT ? 1 : 255;
    VipsArrayDouble* background = vips_array_double_newv(1, white);
    const int failed = vips_flatten(in, out, "background", background, nullptr);
    vips_area_unref(VIPS_AREA(background));
    return failed;
  });
}

ImagePtr as_srgb(const std::string& path, ImagePtr image) {
  image = on_white(path, std::move(image));
  if (vips_image_get_interpretation(image.get()) != VIPS_INTERPRETATION_sRGB)
    image = apply(path, std::move(image), [](VipsImage* in, VipsImage** out) {
      return vips_colourspace(in, out, VIPS_INTERPRETATION_sRGB, nullptr);
    });
  if (vips_image_get_format(image.get()) != VIPS_FORMAT_UCHAR)
    image =
        apply(path, std::move(image), [](VipsImage* in, VipsImage** out) { return vips_cast_uchar(in, out, nullptr); });
  const int bands = vips_image_get_bands(image.get());
  if (bands != 3) bad_image(path, concat("has ", bands, " channels and no meaning for them; expected RGB or grey"));
  return image;
}

/// Colours that are no red, green and blue.
bool other_colours(VipsImage* image) {
  switch (vips_image_get_interpretation(image)) {
    case VIPS_INTERPRETATION_XYZ:
    case VIPS_INTERPRETATION_LAB:
    case VIPS_INTERPRETATION_CMYK:
    case VIPS_INTERPRETATION_LABQ:
    case VIPS_INTERPRETATION_CMC:
    case VIPS_INTERPRETATION_LCH:
    case VIPS_INTERPRETATION_LABS:
    case VIPS_INTERPRETATION_YXY:
    case VIPS_INTERPRETATION_HSV:
      return true;
    default:
      return false;
  }
}

/// As they are in the file. A fourth band is a channel like the others in TIFF, where libvips takes any for
/// transparency; in pictures for people (PNG, slides, ...) it is transparency.
ImagePtr as_numbers(const std::string& path, const std::string& loader, ImagePtr image) {
  const auto made_by = [&](const char* name) { return loader.find(name) != std::string::npos; };
  const bool measured = made_by("Tiff") || made_by("Fits") || made_by("LoadVips");
  if (other_colours(image.get()) ||
      (!measured && vips_image_get_interpretation(image.get()) == VIPS_INTERPRETATION_scRGB))
    return as_srgb(path, std::move(image));
  if (!measured) image = on_white(path, std::move(image));
  switch (vips_image_get_format(image.get())) {
    case VIPS_FORMAT_UCHAR:
    case VIPS_FORMAT_USHORT:
    case VIPS_FORMAT_FLOAT:
      return image;
    case VIPS_FORMAT_COMPLEX:
    case VIPS_FORMAT_DPCOMPLEX:
      bad_image(path, "has complex numbers; save them as two channels");
    default:
      return apply(path, std::move(image),
                   [](VipsImage* in, VipsImage** out) { return vips_cast_float(in, out, nullptr); });
  }
}

PixelFormat format_of(VipsImage* image) {
  const VipsBandFormat format = vips_image_get_format(image);
  return {vips_image_get_bands(image), format == VIPS_FORMAT_UCHAR    ? PixelType::uint8
                                       : format == VIPS_FORMAT_USHORT ? PixelType::uint16
                                                                      : PixelType::float32};
}

ImagePtr as_label(const std::string& path, ImagePtr image) {
  const int bands = vips_image_get_bands(image.get());
  const VipsBandFormat format = vips_image_get_format(image.get());
  if (bands != 1) bad_image(path, concat("has ", bands, " channels; a mask has one, or (in a PNG file) a palette"));
  if (format != VIPS_FORMAT_UCHAR && format != VIPS_FORMAT_USHORT)
    bad_image(path, "is a mask of neither 8 nor 16 bits per pixel");
  return apply(path, std::move(image),
               [](VipsImage* in, VipsImage** out) { return vips_cast_ushort(in, out, nullptr); });
}

}  // namespace

bool has_vips() { return true; }

std::string vips_version() {
  const UsesVips vips;
  return concat(::vips_version(0), ".", ::vips_version(1), ".", ::vips_version(2));
}

void write_label_image(const std::string& path, const at::Tensor& labels, ImageSize size) {
  const UsesVips vips;
  const at::Tensor dense = labels.contiguous();
  ensure(dense.dim() == 2 && dense.scalar_type() == at::kByte, "an image of labels of sizes ", dense.sizes());
  ImagePtr image(vips_image_new_from_memory(dense.data_ptr(), dense.nbytes(), static_cast<int>(dense.size(1)),
                                            static_cast<int>(dense.size(0)), 1, VIPS_FORMAT_UCHAR));
  if (size != ImageSize{dense.size(0), dense.size(1)}) {
    VipsImage* stretched = nullptr;
    const double across = static_cast<double>(size.width) / static_cast<double>(dense.size(1));
    const double down = static_cast<double>(size.height) / static_cast<double>(dense.size(0));
    if (!image || vips_resize(image.get(), &stretched, across, "vscale", down, "kernel", VIPS_KERNEL_NEAREST, nullptr))
      vips_failed(path, "cannot be stretched");
    image = ImagePtr(stretched);
  }
  save_tiff(path, image);
}

void write_planes(const std::string& path, const at::Tensor& planes) {
  const UsesVips vips;
  const at::Tensor dense = planes.permute({1, 2, 0}).contiguous();
  ensure(dense.scalar_type() == at::kFloat, "planes of ", dense.scalar_type());
  save_tiff(path, ImagePtr(vips_image_new_from_memory(dense.data_ptr(), dense.nbytes(), static_cast<int>(dense.size(1)),
                                                      static_cast<int>(dense.size(0)), static_cast<int>(dense.size(2)),
                                                      VIPS_FORMAT_FLOAT)));
}

void write_picture(const std::string& path, const at::Tensor& rgb) {
  const UsesVips vips;
  const at::Tensor dense = rgb.contiguous();
  ensure(dense.dim() == 3 && dense.size(2) == 3 && dense.scalar_type() == at::kByte, "a picture of sizes ",
         dense.sizes());
  const ImagePtr raw(vips_image_new_from_memory(dense.data_ptr(), dense.nbytes(), static_cast<int>(dense.size(1)),
                                                static_cast<int>(dense.size(0)), 3, VIPS_FORMAT_UCHAR));
  VipsImage* image = nullptr;
  // The ending decides on the format, so it comes last.
  const std::string temporary = concat(path.substr(0, path.rfind('.')), ".part", path.substr(path.rfind('.')));
  if (!raw || vips_copy(raw.get(), &image, "interpretation", VIPS_INTERPRETATION_sRGB, nullptr) != 0)
    vips_failed(path, "cannot be made");
  const ImagePtr picture(image);
  if (vips_image_write_to_file(picture.get(), temporary.c_str(), nullptr) != 0) {
    std::remove(temporary.c_str());
    vips_failed(path, "cannot be written; is the disk full?");
  }
  if (std::rename(temporary.c_str(), path.c_str()) != 0) bad_image(path, "cannot be written");
}

namespace vips {

ImageHeader read_header(const std::string& path) {
  const UsesVips vips;
  const char* loader = vips_foreign_find_load(path.c_str());
  if (!loader) vips_failed(path, "is not an image that libvips can read");
  ImageHeader header{.loader = loader, .levels = {ImageLevel{}}};
  ImagePtr image = load(path, header.loader, header.levels.front());
  header.height = vips_image_get_height(image.get());
  header.width = vips_image_get_width(image.get());
  add_levels(header, path, image.get());
  if (any_place(path, header.loader)) {
    // Of slides OpenSlide does not say it, and decodes each tile once more where bands meet.
    const int tile = number_in(image.get(), "tile-height");
    header.band_rows = tile > 0 ? tile : slide_band_rows;
  }
  header.format = format_of(as_numbers(path, header.loader, std::move(image)).get());
  return header;
}

namespace {

class Decoder final : public ImageDecoder {
 public:
  Decoder(const std::string& path, const ImageHeader& header, const ImageLevel& level, PixelKind kind)
      : path_(path), from_top_(!any_place(path, header.loader)) {
    ImagePtr image = load(path, header.loader, level);
    if (kind.label) palette_ = palette_of(path);
    image_ = !kind.label         ? as_numbers(path, header.loader, std::move(image))
             : !palette_.empty() ? as_srgb(path, std::move(image))
                                 : as_label(path, std::move(image));
    if (!kind.label && format_of(image_.get()) != header.format)
      bad_image(path, concat("has ", header.format.text(), ", and a smaller version of it in the file has ",
                             format_of(image_.get()).text()));
  }

  std::int64_t height() const override { return vips_image_get_height(image_.get()); }
  std::int64_t width() const override { return vips_image_get_width(image_.get()); }
  void for_each_row(Interval rows, Interval columns, const std::function<void(const void*)>& take) override {
    const UsesVips vips;
    const RegionPtr region(vips_region_new(image_.get()));
    const auto row_bytes = static_cast<std::int64_t>(VIPS_IMAGE_SIZEOF_PEL(image_.get())) * columns.size();
    const std::int64_t step = std::clamp(strip_bytes / row_bytes, fewest_strip_rows, most_strip_rows);
    const auto decode = [&](std::int64_t top, std::int64_t width, std::int64_t end) {
      const VipsRect strip{static_cast<int>(columns.begin), static_cast<int>(top), static_cast<int>(width),
                           static_cast<int>(std::min(step, end - top))};
      if (vips_region_prepare(region.get(), &strip) != 0)
        vips_failed(path_, "cannot be decoded; it is damaged or cut short");
      return strip;
    };
    // What is above the box, one column of it: libvips would do it in one piece and hold that.
    for (std::int64_t top = 0; from_top_ && top < rows.begin; top += step) decode(top, 1, rows.begin);
    for (std::int64_t top = rows.begin; top < rows.end; top += step) {
      const VipsRect strip = decode(top, columns.size(), rows.end);
      for (int y = strip.top; y < strip.top + strip.height; ++y) {
        const VipsPel* row = VIPS_REGION_ADDR(region.get(), strip.left, y);
        take(palette_.empty() ? static_cast<const void*>(row) : palette_.numbers_of(row, columns.size()).data());
      }
    }
  }

 private:
  const UsesVips vips_;
  const std::string path_;
  const bool
      from_top_;     // libvips would hold all that it decodes of other files, were they opened for reading at any place
  Palette palette_;  // empty: rows are as they are
  ImagePtr image_;
};

}  // namespace

std::unique_ptr<ImageDecoder> open(const std::string& path, const ImageHeader& header, const ImageLevel& level,
                                   PixelKind kind) {
  return std::make_unique<Decoder>(path, header, level, kind);
}

}  // namespace vips
}  // namespace tessera
