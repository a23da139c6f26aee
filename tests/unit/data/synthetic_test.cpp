#include "tessera/data/synthetic.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "reading.h"
#include "tessera/base/error.h"

namespace tessera {
namespace {

const SyntheticOptions uneven{.classes = 7, .channels = 3, .height = 37, .width = 53, .size = 100, .seed = 5};

TEST(Synthetic, AnyBoxIsTheCropOfTheWhole) {
  for (const std::int64_t channels : {1, 3, 5}) {
    auto options = uneven;
    options.channels = channels;
    const SyntheticImages source(options);
    for (const auto dtype : {at::kFloat, at::kDouble}) {
      const at::Tensor whole = read_whole(source, 42, dtype);
      for (const Interval rows : {Interval{0, 37}, Interval{0, 18}, Interval{18, 37}, Interval{36, 37}, Interval{5, 5}})
        for (const Interval columns : {Interval{0, 53}, Interval{1, 2}, Interval{26, 53}, Interval{52, 53}}) {
          const at::Tensor crop = whole.slice(1, rows.begin, rows.end).slice(2, columns.begin, columns.end);
          EXPECT_TRUE(at::equal(read(source, 42, rows, columns, dtype), crop))
              << channels << " channels, " << dtype << ", rows " << rows << ", columns " << columns;
        }
    }
  }
}

TEST(Synthetic, Float32IsTheRoundedFloat64) {
  const SyntheticImages source(uneven);
  const at::Tensor exact = read_whole(source, 9), rounded = read_whole(source, 9, at::kFloat);
  EXPECT_TRUE(at::equal(exact.to(at::kFloat), rounded));
  EXPECT_FALSE(at::equal(exact, rounded.to(at::kDouble))) << "float64 must have digits of its own";
}

TEST(Synthetic, StridesOfTheTargetDoNotMatter) {
  const SyntheticImages source(uneven);
  const at::Tensor expected = read_whole(source, 3);
  const auto options = at::TensorOptions().dtype(at::kDouble);
  const at::Tensor planes = at::empty({3, 37, 53}, options);
  source.read(3, {0, 37}, {0, 53}, planes);
  EXPECT_TRUE(at::equal(planes, expected));

  const at::Tensor canvas = at::zeros({41, 3, 60}, options);  // a part of something larger, rows outermost
  const at::Tensor inside = canvas.slice(0, 2, 39).slice(2, 4, 57).transpose(0, 1);
  source.read(3, {0, 37}, {0, 53}, inside);
  EXPECT_TRUE(at::equal(inside, expected));
  inside.zero_();
  EXPECT_EQ(canvas.abs().sum().item<double>(), 0) << "wrote outside the target";
}

TEST(Synthetic, PixelsDependOnSeedAndIndexAndNotOnTheSourceObject) {
  auto other_seed = uneven;
  other_seed.seed = 6;
  const SyntheticImages source(uneven), twin(uneven), other(other_seed);
  EXPECT_TRUE(at::equal(read_whole(source, 1), read_whole(twin, 1)));
  EXPECT_FALSE(at::equal(read_whole(source, 1), read_whole(source, 2)));
  EXPECT_FALSE(at::equal(read_whole(source, 1), read_whole(other, 1)));
}

TEST(Synthetic, EverySumOfTermsIsExactInFloat64) {
  // Multiples of 2^-40 below 8 have 43 bits: the value does not change when scaled to an integer and back.
  const SyntheticImages source(uneven);
  for (std::int64_t i = 0; i < 10; ++i) {
    const at::Tensor scaled = read_whole(source, i) * std::ldexp(1.0, 40);
    EXPECT_TRUE(at::equal(scaled, scaled.round())) << "image " << i;
  }
}

TEST(Synthetic, PixelsHaveMeanZeroAndVarianceOneRoughly) {
  const SyntheticImages source({.classes = 10, .size = 400});
  double sum = 0, squares = 0;
  for (std::int64_t i = 0; i < source.size(); ++i) {
    const at::Tensor image = read_whole(source, i);
    sum += image.mean().item<double>();
    squares += (image * image).mean().item<double>();
  }
  const double mean = sum / 400;
  EXPECT_NEAR(mean, 0, 0.1);
  EXPECT_NEAR(squares / 400 - mean * mean, 1, 0.15);
}

/// Second differences along an axis: white noise of variance v gives 6 v, and next to nothing is left of the wave.
at::Tensor noise_of(const at::Tensor& plane, int axis) {
  return plane.slice(axis, 0, -2) - 2 * plane.slice(axis, 1, -1) + plane.slice(axis, 2);
}

TEST(Synthetic, NoiseIsUncorrelatedBetweenPixelsChannelsImagesAndSeeds) {
  SyntheticOptions options{.classes = 1, .channels = 2, .height = 256, .width = 256, .seed = 2};
  const SyntheticImages source(options);
  options.seed = 3;
  const SyntheticImages other_seed(options);
  const at::Tensor image = read_whole(source, 0), other_image = read_whole(source, 1);
  const at::Tensor image_of_other_seed = read_whole(other_seed, 0);
  for (const int axis : {0, 1}) {
    const at::Tensor noise = noise_of(image[0], axis);
    EXPECT_NEAR((noise * noise).mean().item<double>(), 6 * 0.67 * 0.67, 0.1) << "axis " << axis;
    for (const at::Tensor& other : {image[1], other_image[0], image_of_other_seed[0]})
      EXPECT_NEAR((noise * noise_of(other, axis)).mean().item<double>(), 0, 0.1) << "axis " << axis;
  }
}

TEST(Synthetic, LabelsAreBalanced) {
  const SyntheticImages source({.classes = 10, .size = 50000, .seed = 11});
  std::vector<int> count(10);
  for (std::int64_t i = 0; i < source.size(); ++i) ++count.at(static_cast<std::size_t>(source.label(i)));
  for (const int n : count) EXPECT_NEAR(n, 5000, 6 * std::sqrt(5000 * 0.9));
}

TEST(Synthetic, TheLabelCanBeToldFromTheMeanColour) {
  const auto mean_colour = [](const ImageSource& source, std::int64_t i) { return read_whole(source, i).mean({1, 2}); };
  const SyntheticImages train({.classes = 10, .size = 200, .seed = 1}), test({.classes = 10, .size = 200, .seed = 2});
  const at::Tensor centres = at::zeros({10, 3}, at::TensorOptions().dtype(at::kDouble));
  const at::Tensor counts = at::zeros({10, 1}, at::TensorOptions().dtype(at::kDouble));
  for (std::int64_t i = 0; i < train.size(); ++i) {
    centres[train.label(i)] += mean_colour(train, i);
    counts[train.label(i)] += 1;
  }
  centres.div_(counts);
  int right = 0;
  for (std::int64_t i = 0; i < test.size(); ++i) {
    const at::Tensor distances = (centres - mean_colour(test, i)).pow(2).sum(1);
    right += distances.argmin().item<std::int64_t>() == test.label(i);
  }
  EXPECT_GE(right, 190) << "of 200";
}

TEST(Synthetic, AReadOutsideTheImageOrIntoTheWrongShapeIsRefused) {
  const SyntheticImages source(uneven);
  EXPECT_THROW(read(source, 0, {0, 38}, {0, 53}, at::kFloat), Error);
  EXPECT_THROW(read(source, 0, {-1, 37}, {0, 53}, at::kFloat), Error);
  EXPECT_THROW(read(source, 100, {0, 37}, {0, 53}, at::kFloat), Error);
  EXPECT_THROW(read(source, 0, {0, 37}, {0, 53}, at::kHalf), Error);
  EXPECT_THROW(source.read(0, {0, 37}, {0, 53}, at::empty({3, 53, 37})), Error);
  EXPECT_THROW(SyntheticImages({.classes = 0}), UsageError);
  EXPECT_THROW(SyntheticImages({.height = 0}), UsageError);
}

const SyntheticOptions masked{
    .classes = 4, .channels = 3, .height = 61, .width = 83, .size = 100, .seed = 5, .mask_classes = 4};

TEST(SyntheticMask, AnyBoxIsTheCropOfTheWholeForImageAndMask) {
  const SyntheticImages source(masked);
  const at::Tensor image = read_whole(source, 7), mask = read_whole_mask(source, 7);
  for (const auto& [rows, columns] : some_boxes(61, 83)) {
    EXPECT_TRUE(at::equal(read(source, 7, rows, columns), crop(image, rows, columns)));
    EXPECT_TRUE(at::equal(read_mask(source, 7, rows, columns), crop(mask, rows, columns)));
  }
  EXPECT_TRUE(at::equal(read_whole_mask(source, 7, at::kByte).to(at::kLong), mask));
  EXPECT_TRUE(at::equal(image.to(at::kFloat), read_whole(source, 7, at::kFloat)));
}

TEST(SyntheticMask, EveryClassCoversAGoodPartAndImagesDiffer) {
  const SyntheticImages source(masked);
  const at::Tensor counts = at::zeros({4}, at::TensorOptions().dtype(at::kDouble));
  for (std::int64_t i = 0; i < 100; ++i)
    for (std::int64_t k = 0; k < 4; ++k) counts[k] += read_whole_mask(source, i).eq(k).sum().item<double>();
  counts.div_(100.0 * 61 * 83);
  EXPECT_NEAR(counts.sum().item<double>(), 1, 1e-9);
  for (std::int64_t k = 0; k < 4; ++k) EXPECT_GT(counts[k].item<double>(), 0.05) << "class " << k;
  EXPECT_FALSE(at::equal(read_whole_mask(source, 0), read_whole_mask(source, 1)));
  auto other = masked;
  other.seed = 6;
  EXPECT_FALSE(at::equal(read_whole_mask(source, 0), read_whole_mask(SyntheticImages(other), 0)));
}

TEST(SyntheticMask, TheMaskCanBeToldFromTheColoursAroundAPixel) {
  // The wave is grey, so what one channel has more than the others is the mask's.
  const auto hue = [](const at::Tensor& colours) { return colours - colours.mean(-1, true); };
  auto options = masked;
  options.height = options.width = 200;
  options.seed = 8;
  const SyntheticImages train(masked), test(options);
  const at::Tensor centres = at::zeros({4, 3}, at::TensorOptions().dtype(at::kDouble));
  for (std::int64_t k = 0; k < 4; ++k) {
    double count = 0;
    for (std::int64_t i = 0; i < 30; ++i) {
      const at::Tensor covered = read_whole_mask(train, i).eq(k).to(at::kDouble);
      centres[k] += (read_whole(train, i) * covered).sum({1, 2});
      count += covered.sum().item<double>();
    }
    centres[k].div_(count);
  }
  int right = 0, asked = 0;
  for (std::int64_t i = 0; i < 20; ++i) {
    const at::Tensor image = read_whole(test, i), mask = read_whole_mask(test, i);
    for (std::int64_t at = 8; at + 9 < 200; at += 12) {  // places whose neighbours are of one class
      const at::Tensor around = crop(mask, {at - 8, at + 9}, {at - 8, at + 9});
      if (!around.eq(around[0][0]).all().item<bool>()) continue;
      const at::Tensor colour = crop(image, {at - 8, at + 9}, {at - 8, at + 9}).mean({1, 2});
      right +=
          (hue(centres) - hue(colour)).pow(2).sum(1).argmin().item<std::int64_t>() == around[0][0].item<std::int64_t>();
      ++asked;
    }
  }
  EXPECT_GE(asked, 100);
  EXPECT_GE(right, asked * 85 / 100) << "of " << asked;
}

TEST(SyntheticMask, ThereIsNoneUnlessAskedForAndImagesAreThenAsBefore) {
  const SyntheticImages source(uneven);
  EXPECT_EQ(source.mask_classes(), 0);
  EXPECT_THROW(read_whole_mask(source, 0), Error);
  const SyntheticImages with(masked);
  EXPECT_THROW(read_mask(with, 0, {0, 62}, {0, 83}), Error);
  EXPECT_THROW(read_whole_mask(with, 0, at::kFloat), Error);
  EXPECT_THROW(SyntheticImages({.mask_classes = 256}), UsageError);
}

}  // namespace
}  // namespace tessera
