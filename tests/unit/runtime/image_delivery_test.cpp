// Images on a GPU have the bits that they have on a CPU.
#include "tessera/runtime/image_delivery.h"

#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "support/byte_images.h"
#include "support/device.h"
#include "tessera/data/augmented.h"

namespace tessera {
namespace {

void expect_same_bits(const std::shared_ptr<const ImageSource>& source, at::ScalarType dtype) {
  if (test::device() != at::kCUDA) GTEST_SKIP() << "for GPUs: set TESSERA_TEST_DEVICE=cuda";
  for (const int workers : {0, 3}) {
    LoaderOptions here = delivered_as(at::TensorOptions().dtype(dtype), workers);
    LoaderOptions there = delivered_as(at::TensorOptions().dtype(dtype).device(at::kCUDA), workers);
    here.batch_size = there.batch_size = 3;
    here.mask_dtype = there.mask_dtype = at::kByte;
    ASSERT_TRUE(there.finish_there);
    LoaderOptions in_pieces = there;
    for (const Box& box : {image_box({0, 1}, {0, 20}, {3, 31}), image_box({1, 3}, {11, 41}, {0, 30})})
      in_pieces.pieces.push_back(box);
    Loader on_cpu(source, here), on_gpu(source, there), tiles_on_gpu(source, in_pieces);
    for (int i = 0; i < 6; ++i) {
      const Batch a = on_cpu.next(), b = on_gpu.next();
      EXPECT_TRUE(at::equal(a.images, b.images.cpu())) << "batch " << i << ", workers " << workers;
      EXPECT_TRUE(at::equal(a.masks, b.masks.cpu()));
      EXPECT_TRUE(at::equal(a.labels, b.labels.cpu()));
      for (const Box& box : in_pieces.pieces) {
        const at::Tensor tile = a.images.slice(0, box.batch().begin, box.batch().end)
                                    .slice(2, box.height().begin, box.height().end)
                                    .slice(3, box.width().begin, box.width().end);
        EXPECT_TRUE(at::equal(tile, tiles_on_gpu.next().images.cpu())) << "batch " << i << ", piece " << box;
      }
    }
  }
}

constexpr std::array dtypes{at::kFloat, at::kDouble, at::kBFloat16};

TEST(ImageDelivery, NormalisesAsACpu) {
  for (const auto dtype : dtypes) expect_same_bits(std::make_shared<test::ByteImages>(7, 65, 33, /*odd=*/2), dtype);
}

TEST(ImageDelivery, NormalisesWideNumbersAndOtherChannelsAsACpu) {
  for (const PixelType type : {PixelType::uint8, PixelType::uint16, PixelType::float32})
    for (const std::int64_t channels : {1, 4, 13})
      for (const auto dtype : dtypes)
        expect_same_bits(std::make_shared<test::ByteImages>(7, 65, 33, /*odd=*/2, PixelFormat{channels, type}), dtype);
}

TEST(ImageDelivery, TurnsAndColoursAsACpu) {
  const AugmentOptions augment{.seed = 5,
                               .flip_horizontal = true,
                               .flip_vertical = true,
                               .rotate = true,
                               .brightness = 0.3,
                               .contrast = 0.2,
                               .saturation = 0.5};
  const auto images = std::make_shared<Augmented>(std::make_shared<test::ByteImages>(7, 41, 41), augment);
  for (const auto dtype : dtypes) expect_same_bits(images, dtype);
  AugmentOptions grey = augment;
  grey.saturation = 0;
  const auto wide = std::make_shared<Augmented>(
      std::make_shared<test::ByteImages>(7, 41, 41, /*odd=*/-1, PixelFormat{4, PixelType::uint16}), grey);
  for (const auto dtype : dtypes) expect_same_bits(wide, dtype);
}

}  // namespace
}  // namespace tessera
