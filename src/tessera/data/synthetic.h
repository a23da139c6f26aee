// Images made from numbers: labelled, learnable, of any size, and needing no files.
//
//   pixel = colour of its class and channel + wave of its class at (y, x) + noise of (seed, index, channel, y, x)
//
// - The wave is a sinusoid whose direction and frequency (in cycles per image) belong to the class and whose phase
//   belongs to the image. Colours and waves do not depend on the seed: another seed gives other images of the same
//   classes, which is what a test set is.
// - Over many images a pixel has mean 0 and variance 1, roughly.
// - A pixel is a function of (seed, index, channel, y, x) and the image's height and width only, so any box can be made
//   anywhere. All terms are multiples of small powers of two, chosen so that their float64 sum is exact: the bits
//   depend neither on the order of additions nor on fused multiply-adds.
//
// With masks, the colour belongs to what covers the pixel instead: the background (mask class 0) or one of a few discs
// and squares that lie at random places, a function of (seed, index, y, x) and the height and width.
#pragma once

#include <vector>

#include "tessera/data/image_source.h"

namespace tessera {

struct SyntheticOptions {
  int classes = 10;
  std::int64_t channels = 3;
  std::int64_t height = 32;
  std::int64_t width = 32;
  std::int64_t size = 50000;
  std::uint64_t seed = 0;
  /// 0: no masks. At most 255.
  int mask_classes = 0;
};

class SyntheticImages : public ImageSource {
 public:
  /// Throws UsageError unless classes, channels, height, width and size are all at least 1 and mask_classes 0 to 255.
  explicit SyntheticImages(const SyntheticOptions& options);

  std::int64_t size() const override { return options_.size; }
  int classes() const override { return options_.classes; }
  std::array<std::int64_t, 3> image_shape() const override {
    return {options_.channels, options_.height, options_.width};
  }
  /// Uniform over the classes, a function of (seed, index).
  std::int64_t label(std::int64_t index) const override;
  /// Its label and, of most images, another one.
  std::optional<std::vector<std::int64_t>> label_set(std::int64_t index) const override;
  int mask_classes() const override { return options_.mask_classes; }
  void read(ReadKey key, Interval rows, Interval columns, const at::Tensor& out) const override;
  void read_mask(ReadKey key, Interval rows, Interval columns, const at::Tensor& out) const override;
  std::string describe() const override;

 private:
  /// A disc, or a square with its sides along the axes; the radius is half of such a side.
  struct Shape {
    bool disc;
    std::uint8_t mask_class;
    std::int64_t y, x, radius;
  };

  std::vector<Shape> shapes(std::int64_t index) const;
  /// The mask of the columns of row y.
  void cover(const std::vector<Shape>& shapes, std::int64_t y, Interval columns, std::uint8_t* row) const;
  template <class Real>
  void read_as(std::int64_t index, Interval rows, Interval columns, const at::Tensor& out) const;

  SyntheticOptions options_;
  std::vector<double> colours_;       // [class][channel]
  std::vector<double> mask_colours_;  // [mask class][channel]
};

}  // namespace tessera
