#include "tessera/data/augmented.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/rot90.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "reading.h"
#include "tessera/base/error.h"
#include "tessera/data/synthetic.h"

namespace tessera {
namespace {

std::shared_ptr<const SyntheticImages> synthetic(std::int64_t height, std::int64_t width) {
  return std::make_shared<SyntheticImages>(
      SyntheticOptions{.classes = 3, .height = height, .width = width, .size = 1000, .seed = 4, .mask_classes = 4});
}

const AugmentOptions everything{.seed = 3,
                                .flip_horizontal = true,
                                .flip_vertical = true,
                                .rotate = true,
                                .crop_min = 0.2,
                                .crop_max = 0.9,
                                .brightness = 0.3,
                                .contrast = 0.4,
                                .saturation = 0.5};

/// Channel 0 is the row, channel 1 the column, channel 2 is 7; the mask is the row modulo 100. Remembers what was read.
class Ramps : public ImageSource {
 public:
  Ramps(std::int64_t height, std::int64_t width) : height_(height), width_(width) {}
  std::int64_t size() const override { return 1000; }
  int classes() const override { return 1; }
  std::array<std::int64_t, 3> image_shape() const override { return {3, height_, width_}; }
  std::int64_t label(std::int64_t) const override { return 0; }
  int mask_classes() const override { return 100; }
  void read(ReadKey key, Interval rows, Interval columns, const at::Tensor& out) const override {
    check_read(key, rows, columns, out);
    pixels_read += rows.size() * columns.size();
    for (std::int64_t y = 0; y < rows.size(); ++y) out[0][y].fill_(rows.begin + y);
    for (std::int64_t x = 0; x < columns.size(); ++x) out[1].select(1, x).fill_(columns.begin + x);
    out[2].fill_(7);
  }
  void read_mask(ReadKey key, Interval rows, Interval columns, const at::Tensor& out) const override {
    check_read_mask(key, rows, columns, out);
    for (std::int64_t y = 0; y < rows.size(); ++y) out[y].fill_((rows.begin + y) % 100);
  }
  std::string describe() const override { return "ramps"; }

  mutable std::int64_t pixels_read = 0;

 private:
  std::int64_t height_, width_;
};

TEST(Augmented, AnyBoxIsTheCropOfTheWholeForImageAndMask) {
  for (const auto& [height, width] : {std::pair{40, 40}, {33, 57}}) {
    const Augmented source(synthetic(height, width), everything);
    for (std::int64_t index = 0; index < 12; ++index) {
      const ReadKey key(index, index % 3);
      const at::Tensor image = read_whole(source, key), rounded = read_whole(source, key, at::kFloat);
      const at::Tensor mask = read_whole_mask(source, key);
      for (const auto& [rows, columns] : some_boxes(height, width)) {
        EXPECT_TRUE(at::equal(read(source, key, rows, columns), crop(image, rows, columns)));
        EXPECT_TRUE(at::equal(read(source, key, rows, columns, at::kFloat), crop(rounded, rows, columns)));
        EXPECT_TRUE(at::equal(read_mask(source, key, rows, columns), crop(mask, rows, columns)));
        EXPECT_TRUE(
            at::equal(read_mask(source, key, rows, columns, at::kByte).to(at::kLong), crop(mask, rows, columns)));
      }
      EXPECT_TRUE(at::allclose(rounded.to(at::kDouble), image, 1e-6, 1e-6));
    }
  }
}

/// How often each of the eight ways to turn and flip a square shows; image and mask must agree.
std::map<int, int> ways_of(const AugmentOptions& options, std::int64_t height, std::int64_t width) {
  const auto plain = synthetic(height, width);
  const Augmented source(plain, options);
  std::map<int, int> ways;
  for (std::int64_t index = 0; index < 400; ++index) {
    const at::Tensor image = read_whole(source, index), mask = read_whole_mask(source, index);
    for (int way = 0; way < 8; ++way) {
      const auto done = [&](const at::Tensor& whole, std::int64_t first) {
        const at::Tensor turned = at::rot90(whole, way % 4, {first, first + 1});
        return way < 4 ? turned : turned.flip(first + 1);
      };
      if (!at::equal(image, done(read_whole(*plain, index), 1))) continue;
      EXPECT_TRUE(at::equal(mask, done(read_whole_mask(*plain, index), 0))) << "image " << index;
      ++ways[way];
    }
  }
  return ways;
}

TEST(Augmented, FlipsAndTurnsComeEquallyOftenAndMasksFollow) {
  // Ways 0 to 3 are turns to the left, 4 to 7 the same and then flipped left to right. Six deviations of the counts.
  const auto expect = [](const std::map<int, int>& ways, const std::vector<int>& expected) {
    ASSERT_EQ(ways.size(), expected.size());
    const double each = 400.0 / static_cast<double>(expected.size());
    for (const int way : expected) {
      ASSERT_TRUE(ways.contains(way)) << "way " << way;
      EXPECT_NEAR(ways.at(way), each, 6 * std::sqrt(each)) << "way " << way;
    }
  };
  expect(ways_of({}, 16, 16), {0});
  expect(ways_of({.flip_horizontal = true}, 16, 16), {0, 4});
  expect(ways_of({.flip_vertical = true}, 16, 16), {0, 6});
  expect(ways_of({.rotate = true}, 16, 16), {0, 1, 2, 3});
  expect(ways_of({.flip_horizontal = true, .rotate = true}, 16, 16), {0, 1, 2, 3, 4, 5, 6, 7});
  expect(ways_of({.rotate = true}, 12, 17), {0, 2});
  expect(ways_of({.flip_horizontal = true, .flip_vertical = true}, 12, 17), {0, 2, 4, 6});
}

TEST(Augmented, IsAFunctionOfSeedEpochAndIndex) {
  const auto plain = synthetic(24, 24);
  const Augmented source(plain, everything), twin(plain, everything);
  auto options = everything;
  options.seed = 4;
  const Augmented other(plain, options);
  const at::Tensor image = read_whole(source, {5, 2});
  EXPECT_TRUE(at::equal(image, read_whole(twin, {5, 2})));
  EXPECT_FALSE(at::equal(image, read_whole(source, {5, 3})));
  EXPECT_FALSE(at::equal(image, read_whole(other, {5, 2})));
  // The same source image at two indices would be changed in two ways: ramps are all one image.
  const Augmented ramps(std::make_shared<Ramps>(24, 24), everything);
  EXPECT_FALSE(at::equal(read_whole(ramps, {5, 2}), read_whole(ramps, {6, 2})));
}

TEST(Augmented, OffIsTheSourceItself) {
  const auto plain = synthetic(20, 30);
  const Augmented source(plain, {.seed = 9});
  EXPECT_FALSE(AugmentOptions{.seed = 9}.any());
  EXPECT_TRUE(AugmentOptions{.contrast = 0.1}.any());
  EXPECT_TRUE(at::equal(read_whole(source, {3, 1}, at::kFloat), read_whole(*plain, 3, at::kFloat)));
}

TEST(Augmented, OnlyTheBoxThatIsNeededIsReadFromTheSource) {
  const auto ramps = std::make_shared<Ramps>(200, 200);
  const Augmented turned(ramps, {.flip_horizontal = true, .flip_vertical = true, .rotate = true});
  for (std::int64_t index = 0; index < 20; ++index) {
    ramps->pixels_read = 0;
    read(turned, index, {10, 50}, {100, 110});
    EXPECT_EQ(ramps->pixels_read, 40 * 10);
  }
  const Augmented cropped(ramps, {.crop_min = 0.25, .crop_max = 0.25});  // half of each side
  for (std::int64_t index = 0; index < 20; ++index) {
    ramps->pixels_read = 0;
    read(cropped, index, {10, 50}, {100, 110});
    EXPECT_LE(ramps->pixels_read, (20 + 2) * (5 + 2));
    EXPECT_GE(ramps->pixels_read, 20 * 5);
  }
}

TEST(Augmented, ACropIsAWindowOfTheRightSizeAndTheMaskShowsTheSame) {
  const std::int64_t side = 90;
  const Augmented source(std::make_shared<Ramps>(side, side), {.crop_min = 0.25, .crop_max = 0.64});
  double smallest = 1, largest = 0, lowest_top = 1, highest_bottom = 0;
  for (std::int64_t index = 0; index < 300; ++index) {
    const at::Tensor image = read_whole(source, index);
    // Linear interpolation of a ramp is a ramp. Pixel centres: row(y) = top + (y + 0.5) · share − 0.5.
    const double first = image[0][20][0].item<double>(), last = image[0][70][0].item<double>();
    const double share = (last - first) / 50;
    EXPECT_NEAR((image[1][0][70] - image[1][0][20]).item<double>() / 50, share, 1e-4) << "proportions are kept";
    const double top = first + 0.5 - 20.5 * share;
    smallest = std::min(smallest, share);
    largest = std::max(largest, share);
    lowest_top = std::min(lowest_top, top / side);
    highest_bottom = std::max(highest_bottom, top / side + share);
    const at::Tensor mask = read_whole_mask(source, index);
    for (std::int64_t y = 10; y < 80; ++y) {
      const double row = image[0][y][40].item<double>();
      if (std::abs(row - std::floor(row) - 0.5) < 1e-3) continue;  // between two pixels
      EXPECT_EQ(mask[y][33].item<std::int64_t>(), std::lround(row)) << "image " << index << ", row " << y;
    }
  }
  EXPECT_NEAR(smallest, 0.5, 0.01);
  EXPECT_NEAR(largest, 0.8, 0.01);
  EXPECT_NEAR(lowest_top, 0, 0.02);
  EXPECT_NEAR(highest_bottom, 1, 0.02);
}

TEST(Augmented, ColoursChangeByTheFormulasInRawColours) {
  const auto plain = synthetic(8, 8);  // mean 0.5, deviation 0.25
  const auto raw = [](const at::Tensor& image) { return image * 0.25 + 0.5; };
  const auto grey = [](const at::Tensor& r) { return (0.299 * r[0] + 0.587 * r[1] + 0.114 * r[2]).unsqueeze(0); };
  struct Range {
    double lowest = 9, highest = -9;
    void take(double f) { lowest = std::min(lowest, f), highest = std::max(highest, f); }
  } brightness, contrast, saturation;
  for (std::int64_t index = 0; index < 300; ++index) {
    const at::Tensor before = raw(read_whole(*plain, index));
    const auto change = [&](const AugmentOptions& options) {
      return raw(read_whole(Augmented(plain, options), index));
    };
    const auto check = [&](const at::Tensor& after, const at::Tensor& still, Range& range) {
      // after = still + f (before − still), one f for all pixels
      const double f = ((after - still) / (before - still))[0][4][4].item<double>();
      EXPECT_TRUE(at::allclose(after, still + f * (before - still), 1e-9, 1e-9)) << "image " << index;
      range.take(f);
    };
    check(change({.brightness = 0.2}), before * 0, brightness);
    check(change({.contrast = 0.3}), before * 0 + 0.5, contrast);
    check(change({.saturation = 0.4}), grey(before), saturation);
  }
  EXPECT_NEAR(brightness.lowest, 0.8, 0.01);
  EXPECT_NEAR(brightness.highest, 1.2, 0.01);
  EXPECT_NEAR(contrast.lowest, 0.7, 0.01);
  EXPECT_NEAR(contrast.highest, 1.3, 0.01);
  EXPECT_NEAR(saturation.lowest, 0.6, 0.01);
  EXPECT_NEAR(saturation.highest, 1.4, 0.01);
}

TEST(Augmented, ColoursChangeInTheOrderThatIsStated) {
  const auto plain = synthetic(8, 8);
  const auto changed = [&](const AugmentOptions& o) { return read_whole(Augmented(plain, o), 11) * 0.25 + 0.5; };
  const at::Tensor before = read_whole(*plain, 11) * 0.25 + 0.5;
  // The factor of each is the same as when it is alone.
  const double b = (changed({.brightness = 0.5}) / before)[0][0][0].item<double>();
  const double c = ((changed({.contrast = 0.5}) - 0.5) / (before - 0.5))[0][0][0].item<double>();
  const at::Tensor middle = 0.5 + (before * b - 0.5) * c;
  const at::Tensor grey = 0.299 * middle[0] + 0.587 * middle[1] + 0.114 * middle[2];
  const at::Tensor after = changed({.brightness = 0.5, .contrast = 0.5, .saturation = 0.5});
  const double s = ((after[0] - grey) / (middle[0] - grey))[0][0].item<double>();
  EXPECT_TRUE(at::allclose(after, grey + s * (middle - grey), 1e-9, 1e-9));
}

TEST(Augmented, OptionsOutOfRangeAreRefused) {
  const auto plain = synthetic(8, 8);
  EXPECT_THROW(Augmented(plain, {.crop_min = 0}), UsageError);
  EXPECT_THROW(Augmented(plain, {.crop_min = 0.9, .crop_max = 0.8}), UsageError);
  EXPECT_THROW(Augmented(plain, {.crop_max = 1.1}), UsageError);
  EXPECT_THROW(Augmented(plain, {.brightness = -0.1}), UsageError);
  EXPECT_THROW(Augmented(plain, {.contrast = 1.5}), UsageError);
  const auto grey = std::make_shared<SyntheticImages>(SyntheticOptions{.channels = 1});
  EXPECT_THROW(Augmented(grey, {.saturation = 0.1}), UsageError);
  EXPECT_NO_THROW(Augmented(grey, {.brightness = 0.1}));
}

}  // namespace
}  // namespace tessera
