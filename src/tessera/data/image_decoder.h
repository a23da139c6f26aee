// Rows of pixels out of image files, without holding an image.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tessera/data/pixels.h"
#include "tessera/geometry/box.h"

namespace tessera {

/// A smaller version of an image that its file offers: a level of a pyramid, or a JPEG decoded with fewer coefficients.
struct ImageLevel {
  std::string option;                        ///< of libvips' loader; empty for the image itself
  int number = 0;                            ///< the option's value
  double row_shrink = 1, column_shrink = 1;  ///< pixels of the image that one pixel of the level stands for
};

/// What is known of a file without decoding it.
struct ImageHeader {
  std::string loader;
  std::int64_t height = 0, width = 0;
  std::vector<ImageLevel> levels;     ///< the image itself, then ever smaller ones
  std::int64_t band_rows = 0;         ///< as ImageSource::band_rows()
  std::int64_t item = 0, images = 1;  ///< which image of the file this is, and how many it has
  PixelFormat format;                 ///< of the file, without transparency where it is a picture
};

/// `item`: which of the images of a file. Throws Error that names the file when it is not an image.
ImageHeader read_header(const std::string& path, std::int64_t item = 0, bool mask = false);
/// How many images, or masks, a file has: arrays may have several.
std::int64_t images_in(const std::string& path, bool mask = false);

/// The smallest level that still has a pixel for each pixel of the result, when one of these stands for
/// rows × columns of the image.
const ImageLevel& level_for(const ImageHeader& header, double rows, double columns);

/// What is wanted of a pixel: its numbers, of the file's type and in so many channels, or the one label of a mask.
struct PixelKind {
  /// As many as the file has; or 3 where it has one: grey is repeated; or without the last of 2 or 4: that is
  /// transparency then, and is laid on white.
  std::int64_t channels = 3;
  /// One uint16_t, of an image of one channel of 8 or 16 bits.
  bool label = false;

  static PixelKind labels() { return {.channels = 1, .label = true}; }
};

/// Whether PixelKind can ask this of a file that has so many channels.
bool can_become(std::int64_t has, std::int64_t wanted);

/// One file, open at one level. For one thread; several threads may each have their own of one file.
class ImageDecoder {
 public:
  virtual ~ImageDecoder() = default;

  /// Of the level.
  virtual std::int64_t height() const = 0;
  virtual std::int64_t width() const = 0;
  /// Calls take(pixels) for each row of a box, from top to bottom. To be called once. Of tiled files, slides and arrays
  /// only what the box touches is decoded; other files are decoded from their top to the box's bottom. Holds a few rows
  /// of the box, and of tiled files at most two rows of tiles. Throws Error that names the file.
  virtual void for_each_row(Interval rows, Interval columns, const std::function<void(const void*)>& take) = 0;
};

/// Throws Error that names the file; so does reading a float that is not finite.
std::unique_ptr<ImageDecoder> open_image(const std::string& path, const ImageHeader& header, const ImageLevel& level,
                                         PixelKind kind);

}  // namespace tessera
