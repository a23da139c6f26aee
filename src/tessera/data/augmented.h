// Images that look different in every epoch, and the same on every tile.
#pragma once

#include <memory>

#include "tessera/data/image_source.h"

namespace tessera {

/// Everything is off by default. What is done to an image is a function of (seed, epoch, index).
struct AugmentOptions {
  std::uint64_t seed = 0;

  // Where pixels come from. Masks follow.

  /// Left and right swapped, top and bottom swapped, each with a chance of one half.
  bool flip_horizontal = false, flip_vertical = false;
  /// Turned by a multiple of 90 degrees, each with the same chance; images that are not square by 0 or 180.
  bool rotate = false;
  /// A window of the image's own proportions at a place drawn at random, stretched to the whole. Its share of the area
  /// is uniform in [crop_min, crop_max]; 1 and 1 is off.
  double crop_min = 1, crop_max = 1;

  // What becomes of their colours, in this order. A factor f is uniform in [1 − value, 1 + value]; 0 is off.

  /// raw · f
  double brightness = 0;
  /// mean + (raw − mean) · f, with the data set's mean: that of the image would need all of it.
  double contrast = 0;
  /// grey + (raw − grey) · f, with the pixel's own grey. For images of three channels.
  double saturation = 0;

  bool any() const { return *this != AugmentOptions{.seed = seed}; }
  friend bool operator==(const AugmentOptions&, const AugmentOptions&) = default;
};

/// Another source's images, augmented. A read reads the one box of the source that it needs, straight into the
/// target's memory. Changed colours are computed in float64 from pixels of the target's type and not clamped: only
/// there may a float32 value be one rounding away from its float64 value.
class Augmented : public ImageSource {
 public:
  /// Throws UsageError when an option is out of its range or needs three channels.
  Augmented(std::shared_ptr<const ImageSource> source, const AugmentOptions& options);

  std::int64_t size() const override { return source_->size(); }
  int classes() const override { return source_->classes(); }
  std::array<std::int64_t, 3> image_shape() const override { return source_->image_shape(); }
  std::int64_t label(std::int64_t index) const override { return source_->label(index); }
  std::optional<std::vector<std::int64_t>> label_set(std::int64_t index) const override {
    return source_->label_set(index);
  }
  std::string name(std::int64_t index) const override { return source_->name(index); }
  const std::vector<std::string>& class_names() const override { return source_->class_names(); }
  int mask_classes() const override { return source_->mask_classes(); }
  Normalisation normalisation() const override { return source_->normalisation(); }
  void read(ReadKey key, Interval rows, Interval columns, const at::Tensor& out) const override;
  void read_mask(ReadKey key, Interval rows, Interval columns, const at::Tensor& out) const override;
  std::optional<RawImage> raw(ReadKey key, Interval rows, Interval columns) const override;
  void read_bytes(std::int64_t index, Interval rows, Interval columns, std::uint8_t* to) const override {
    source_->read_bytes(index, rows, columns, to);
  }
  std::int64_t band_rows(ReadKey key) const override { return change_of(key).transpose ? 0 : source_->band_rows(key); }
  std::string describe() const override;

 private:
  /// Output (y, x) is input (y, x) after these, in this order; so a turn to the left is flip_rows and transpose.
  struct Change {
    bool flip_rows = false, flip_columns = false, transpose = false;
    ImageWindow window;
    bool colours = false;
    double brightness = 1, contrast = 1, saturation = 1;
  };
  struct SourceBox {
    Interval rows, columns;
  };

  Change change_of(ReadKey key) const;
  SourceBox source_box(const Change& change, Interval rows, Interval columns) const;
  ColourMap colour_map(const Change& change) const;

  std::shared_ptr<const ImageSource> source_;
  AugmentOptions options_;
  Normalisation normalisation_;
};

}  // namespace tessera
