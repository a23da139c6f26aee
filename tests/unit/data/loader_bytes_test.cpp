// Images that travel as bytes and are finished where they are used have the bits of images that are read as values.
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "support/byte_images.h"
#include "tessera/data/augmented.h"
#include "tessera/data/loader.h"

namespace tessera {
namespace {

using test::ByteImages;

/// On a CPU, what a GPU does on one.
void finish_here(const RawImage& raw, const at::Tensor& bytes, const at::Tensor& out) {
  if (out.scalar_type() == at::kFloat || out.scalar_type() == at::kDouble)
    return finish(raw, bytes.data_ptr<std::uint8_t>(), out);
  const at::Tensor wide = at::empty(out.sizes(), out.options().dtype(at::kFloat));
  finish(raw, bytes.data_ptr<std::uint8_t>(), wide);
  out.copy_(wide);
}

void expect_same(const std::shared_ptr<const ImageSource>& source, LoaderOptions options) {
  options.mask_dtype = at::kByte;
  Loader values(source, options);
  for (const int workers : {0, 1, 4}) {
    LoaderOptions as_bytes = options;
    as_bytes.workers = workers;
    as_bytes.finish_there = finish_here;
    if (!as_bytes.deliver) as_bytes.deliver = at::TensorOptions().dtype(options.dtype);
    Loader loader(source, as_bytes);
    LoaderOptions in_bands = options;
    in_bands.workers = workers;
    Loader also_values(source, in_bands);
    values.start_at(0);
    for (int i = 0; i < 5; ++i) {
      const Batch a = values.next(), b = loader.next(), c = also_values.next();
      EXPECT_TRUE(at::equal(a.images, c.images)) << "as values, batch " << i << ", workers " << workers;
      EXPECT_EQ(a.images.sizes(), b.images.sizes());
      EXPECT_TRUE(at::equal(a.images.to(b.images.scalar_type()), b.images)) << "batch " << i << ", workers " << workers;
      EXPECT_TRUE(at::equal(a.labels, b.labels));
      EXPECT_TRUE(at::equal(a.masks, b.masks)) << "batch " << i << ", workers " << workers;
    }
  }
}

TEST(LoaderBytes, HaveTheBitsOfValues) {
  expect_same(std::make_shared<ByteImages>(9, 20, 31), {.batch_size = 4, .seed = 3});
  expect_same(std::make_shared<ByteImages>(9, 20, 31), {.batch_size = 4, .seed = 3, .dtype = at::kDouble});
  expect_same(std::make_shared<ByteImages>(9, 20, 31),
              {.batch_size = 4, .part = image_box({1, 3}, {5, 17}, {9, 20}), .seed = 3});
}

TEST(LoaderBytes, AreTurnedAndColouredWhereTheyAreUsed) {
  const AugmentOptions augment{.seed = 5,
                               .flip_horizontal = true,
                               .flip_vertical = true,
                               .rotate = true,
                               .brightness = 0.3,
                               .contrast = 0.2,
                               .saturation = 0.5};
  const auto square = std::make_shared<Augmented>(std::make_shared<ByteImages>(9, 24, 24), augment);
  ASSERT_TRUE(square->raw({0, 0}, {0, 24}, {0, 24})->colours);
  expect_same(square, {.batch_size = 4});
  expect_same(square, {.batch_size = 4, .part = image_box({0, 4}, {3, 11}, {10, 24})});
  expect_same(square, {.batch_size = 4, .dtype = at::kDouble});
  expect_same(square, {.batch_size = 4, .deliver = at::TensorOptions().dtype(at::kBFloat16)});
}

TEST(LoaderBytes, OfWideNumbersHaveTheBitsOfValues) {
  const AugmentOptions augment{
      .seed = 5, .flip_horizontal = true, .flip_vertical = true, .rotate = true, .contrast = 0.2};
  for (const PixelType type : {PixelType::uint16, PixelType::float32}) {
    const auto images = std::make_shared<ByteImages>(9, 24, 24, /*odd=*/4, PixelFormat{4, type});
    expect_same(images, {.batch_size = 4});
    expect_same(std::make_shared<Augmented>(images, augment), {.batch_size = 4});
  }
}

TEST(LoaderBytes, LeaveOneImageThatIsNotMadeOfThem) {
  expect_same(std::make_shared<ByteImages>(9, 20, 31, /*odd=*/4), {.batch_size = 3});
}

TEST(LoaderBytes, OfLargeImagesAreReadInBandsOfTheirFiles) {
  const auto large = std::make_shared<ByteImages>(4, 700, 500);
  large->together = 64;
  expect_same(large, {.batch_size = 2, .part = image_box({0, 2}, {10, 690}, {0, 500})});
  EXPECT_GT(large->bands().size(), 2u) << "it is read by several workers";
  for (const std::int64_t begin : large->bands()) EXPECT_TRUE(begin == 10 || begin % 64 == 0) << begin;
}

TEST(LoaderBytes, LargeImagesThatAreNotMadeOfThemAreReadInBands) {
  expect_same(std::make_shared<ByteImages>(4, 700, 500, /*odd=*/1), {.batch_size = 2});
  const auto cropped = std::make_shared<Augmented>(
      std::make_shared<ByteImages>(4, 520, 520),
      AugmentOptions{.seed = 5, .flip_vertical = true, .rotate = true, .crop_min = 0.5, .crop_max = 0.9});
  expect_same(cropped, {.batch_size = 2});
}

}  // namespace
}  // namespace tessera
