#include "tessera/comm/region.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera {
namespace {

at::Tensor counting(at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat) {
  std::int64_t count = 1;
  for (const auto size : sizes) count *= size;
  return at::arange(count, at::TensorOptions().dtype(dtype)).reshape(sizes);
}

TEST(Region, ChannelsLastImagesAreDenseAndContiguousOnesAreNot) {
  const at::Tensor image = counting({2, 3, 4, 5});
  EXPECT_FALSE(region_of(image).dense());
  const at::Tensor channels_last = image.contiguous(at::MemoryFormat::ChannelsLast);
  EXPECT_TRUE(region_of(channels_last).dense());
  EXPECT_TRUE(region_of(channels_last.narrow(0, 1, 1)).dense()) << "one image of a batch";
  EXPECT_TRUE(region_of(channels_last.narrow(0, 1, 1).narrow(2, 1, 2)).dense()) << "whole rows of one image";
  EXPECT_FALSE(region_of(channels_last.narrow(2, 1, 2)).dense()) << "rows of two images";
  EXPECT_FALSE(region_of(channels_last.narrow(3, 1, 2)).dense()) << "columns";
}

TEST(Region, CopiesBetweenAnyTwoLayouts) {
  // Channel counts, widths and dtypes that give every short run length and some long ones.
  for (const std::int64_t channels : {1, 2, 3, 4, 6, 17})
    for (const std::int64_t width : {1, 4})
      for (const at::ScalarType dtype : {at::kByte, at::kBFloat16, at::kFloat, at::kDouble})
        for (const auto format : {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast}) {
          const at::Tensor from = counting({2, channels, 5, 7}, dtype).contiguous(at::MemoryFormat::ChannelsLast);
          const at::Tensor to = at::zeros({3, channels, 9, 9}, dtype).contiguous(format);
          const at::Tensor source = from.narrow(2, 1, 3).narrow(3, 2, width);
          const at::Tensor target = to.narrow(0, 1, 2).narrow(2, 4, 3).narrow(3, 5, width);
          copy_region(region_of(target), region_of(source));
          EXPECT_TRUE(at::equal(target, source)) << channels << ' ' << width << ' ' << dtype << ' ' << format;
          EXPECT_EQ(to.ne(0).sum().item<std::int64_t>(), source.ne(0).sum().item<std::int64_t>())
              << "written elsewhere";
        }
}

TEST(Region, DenseStandsInForAnyShapeAndOthersDoNot) {
  const at::Tensor matrix = counting({4, 6}), into = at::zeros({24}, at::kFloat);
  copy_region(region_of(into), region_of(matrix.t()));
  EXPECT_TRUE(at::equal(into, matrix.t().reshape({24})));
  EXPECT_THROW(copy_region(region_of(at::zeros({12, 2}).t()), region_of(matrix.t())), Error);
}

TEST(Region, AddsInPlaceThroughStrides) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat, at::kDouble}) {
    const at::Tensor from = counting({1, 2, 3, 4}, dtype);
    const at::Tensor to = counting({1, 2, 5, 6}, dtype).contiguous(at::MemoryFormat::ChannelsLast);
    const at::Tensor before = to.clone(), inside = to.narrow(2, 1, 3).narrow(3, 1, 4);
    add_region(region_of(inside), region_of(from));
    before.narrow(2, 1, 3).narrow(3, 1, 4).add_(from);
    EXPECT_TRUE(at::equal(to, before)) << dtype;
  }
}

TEST(Region, ZeroesWhatItCoversAndNothingElse) {
  const at::Tensor image = counting({2, 3, 5, 6}).add(1).contiguous(at::MemoryFormat::ChannelsLast);
  zero_region(region_of(image.narrow(2, 1, 3).narrow(3, 2, 2)));
  EXPECT_EQ(image.narrow(2, 1, 3).narrow(3, 2, 2).ne(0).sum().item<std::int64_t>(), 0);
  EXPECT_EQ(image.eq(0).sum().item<std::int64_t>(), 2 * 3 * 3 * 2);
}

TEST(BufferPool, GivesABufferAgainOnlyWhenItIsFree) {
  BufferPool pool;
  at::Tensor first = pool.take(10000);
  const void* address = first.data_ptr();
  EXPECT_NE(pool.take(10000).data_ptr(), address) << "still in use";
  first.reset();
  EXPECT_EQ(pool.take(9000).data_ptr(), address);
  EXPECT_NE(pool.take(100).data_ptr(), address) << "much too large";
}

}  // namespace
}  // namespace tessera
