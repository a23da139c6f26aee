#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/data/augmented.h"
#include "vips_files.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class VipsMasks : public VipsFiles {
 protected:
  VipsMasks() : mask_(120, 90, 1) {
    for (std::int64_t y = 0; y < 120; ++y)
      for (std::int64_t x = 0; x < 90; ++x) mask_.at(y, x) = static_cast<std::uint8_t>((y / 7 + x / 5) % 6);
    rough_picture(120, 90).save(folder_ / "a.png");
    folder_.write("list.csv", "path,mask\na.png,m.png\n");
  }
  VipsOptions options(std::int64_t height, std::int64_t width) const {
    VipsOptions o = raw(height, width);
    o.mask_classes = 6;
    return o;
  }
  std::string refusal(const VipsOptions& o) const {
    try {
      read_whole_mask(VipsImages(o), 0);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }
  Picture<> mask_;
};

TEST_F(VipsMasks, EachPixelIsTheNearestAndAnyBoxIsTheCrop) {
  mask_.save(folder_ / "m.png");
  for (const auto& [height, width] : {std::pair{120, 90}, {40, 30}, {57, 211}}) {
    const VipsImages source(options(height, width));
    const at::Tensor whole = read_whole_mask(source, 0);
    for (std::int64_t y = 0; y < height; y += 3)
      for (std::int64_t x = 0; x < width; x += 5) {
        const std::int64_t from_y = (2 * y + 1) * 120 / (2 * height), from_x = (2 * x + 1) * 90 / (2 * width);
        ASSERT_EQ(whole[y][x].item<std::int64_t>(), mask_.at(from_y, from_x)) << y << " " << x;
      }
    for (const auto& [rows, columns] : some_boxes(height, width)) {
      EXPECT_TRUE(at::equal(read_mask(source, 0, rows, columns), crop(whole, rows, columns)));
      EXPECT_TRUE(at::equal(read_mask(source, 0, rows, columns, at::kByte), crop(whole, rows, columns).to(at::kByte)));
    }
  }
}

TEST_F(VipsMasks, AugmentedMasksFollowTheirImages) {
  // The image shows its mask: grey 40 · class. Where interpolation meets no border, both say the same.
  Picture<> shown(120, 90, 1);
  for (std::size_t i = 0; i < shown.values.size(); ++i)
    shown.values[i] = static_cast<std::uint8_t>(40 * mask_.values[i]);
  shown.save(folder_ / "a.png");
  mask_.save(folder_ / "m.png");
  const Augmented source(
      std::make_shared<VipsImages>(options(200, 200)),
      {.flip_horizontal = true, .flip_vertical = true, .rotate = true, .crop_min = 0.1, .crop_max = 0.3});
  for (std::int64_t epoch = 0; epoch < 8; ++epoch) {
    const at::Tensor image = read_whole(source, {0, epoch})[0], mask = read_whole_mask(source, {0, epoch});
    const at::Tensor sure = (image / 40).sub((image / 40).round()).abs().lt(1e-6);
    const at::Tensor same = sure.logical_and(image.div(40).round().eq(mask));
    EXPECT_GT(sure.to(at::kDouble).mean().item<double>(), 0.6) << "epoch " << epoch;
    EXPECT_GT(same.sum().item<double>(), 0.98 * sure.sum().item<double>()) << "epoch " << epoch;
    for (const auto& [rows, columns] : some_boxes(200, 200))
      EXPECT_TRUE(at::equal(read_mask(source, {0, epoch}, rows, columns), crop(mask, rows, columns)));
  }
}

TEST_F(VipsMasks, ValuesMayStandForClassesAndForNothing) {
  Picture<> mask(120, 90, 1);
  for (std::size_t i = 0; i < mask.values.size(); ++i) mask.values[i] = i % 3 == 0 ? 0 : i % 3 == 1 ? 255 : 7;
  mask.save(folder_ / "m.png");
  VipsOptions o = options(120, 90);
  o.mask_classes = 2;
  EXPECT_THAT(refusal(o),
              AllOf(HasSubstr("m.png"), HasSubstr("the value 255 in row 0, column 1"), HasSubstr("2 classes")));
  o.mask_values = {0, 255};
  EXPECT_THAT(refusal(o), HasSubstr("the value 7 in row 0, column 2"));
  o.mask_ignore = 7;
  const at::Tensor read = read_whole_mask(VipsImages(o), 0);
  EXPECT_EQ(read[0][0].item<std::int64_t>(), 0);
  EXPECT_EQ(read[0][1].item<std::int64_t>(), 1);
  EXPECT_EQ(read[0][2].item<std::int64_t>(), ignored_label);
  o.mask_values = {0, 1, 2};
  EXPECT_THROW(VipsImages{o}, UsageError) << "3 values for 2 classes";
}

TEST_F(VipsMasks, AMaskOfSixteenBitsIsReadByItsNumbers) {
  Picture<std::uint16_t> mask(120, 90, 1);
  for (auto& value : mask.values) value = 3;
  mask.at(1, 1) = 5;
  mask.save(folder_ / "m.png");
  const at::Tensor read = read_whole_mask(VipsImages(options(120, 90)), 0);
  EXPECT_EQ(read[0][0].item<std::int64_t>(), 3);
  EXPECT_EQ(read[1][1].item<std::int64_t>(), 5);
}

TEST_F(VipsMasks, AMaskOfAnotherSizeOrWithColoursIsRefused) {
  Picture<>(119, 90, 1).save(folder_ / "m.png");
  EXPECT_THAT(refusal(options(120, 90)), AllOf(HasSubstr("m.png' has 119x90 pixels"), HasSubstr("a.png' has 120x90")));
  Picture<>(120, 90, 3).save(folder_ / "m.png");
  EXPECT_THAT(refusal(options(120, 90)), AllOf(HasSubstr("m.png' has 3 channels"), HasSubstr("mask")));
  folder_.cut("m.png", 40);
  EXPECT_THAT(refusal(options(120, 90)), HasSubstr("m.png'"));
}

}  // namespace
}  // namespace tessera
