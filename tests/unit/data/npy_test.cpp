// Images of numpy.save(), in every form that is read, and those that are not.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "npy_bytes.h"
#include "temp_folder.h"
#include "tessera/base/error.h"
#include "tessera/data/image_decoder.h"
#include "tessera/data/npy_format.h"
#include "tessera/data/vips_images.h"

namespace tessera {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class Npy : public testing::Test {
 protected:
  std::vector<int> rgb(const std::string& bytes, Interval rows, Interval columns) const {
    const std::string path = folder_.write("x.npy", bytes);
    const ImageHeader header = read_header(path);
    const auto decoder = open_image(path, header, header.levels.front(), PixelKind{});
    std::vector<int> out;
    decoder->for_each_row(rows, columns, [&](const void* row) {
      const auto* pixels = static_cast<const std::uint8_t*>(row);
      out.insert(out.end(), pixels, pixels + 3 * columns.size());
    });
    return out;
  }
  std::string refusal(const std::string& bytes) const {
    try {
      read_header(folder_.write("x.npy", bytes));
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }
  const TempFolder folder_;
};

TEST_F(Npy, BytesThatAreFinishedAreTheValuesThatAreRead) {
  for (const std::string kind : {"(6, 5, 3)", "(3, 6, 5)", "(6, 5)"}) {
    folder_.write("set/a/1.npy", npy("|u1", kind, counting(kind == "(6, 5)" ? 30 : 90)));
    const VipsImages images({.path = folder_ / "set", .height = 6, .width = 5});
    const auto raw = images.raw(0, {1, 5}, {2, 5});
    ASSERT_TRUE(raw) << kind;
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(raw->bytes()));
    images.read_bytes(0, raw->rows, raw->columns, bytes.data());
    const at::Tensor values = at::empty({3, 4, 3}, at::kDouble), finished = at::empty_like(values);
    images.read(0, {1, 5}, {2, 5}, values);
    finish(*raw, bytes.data(), finished);
    EXPECT_TRUE(at::equal(values, finished)) << kind;
    // Interpolated ones are what they were before there were bytes: the same, where nothing is between pixels.
    EXPECT_NEAR(values[1][0][0].item<double>(), (bytes[1] / 255.0 - 0.456) / 0.224, 1e-12);
    EXPECT_FALSE(VipsImages({.path = folder_ / "set", .height = 7, .width = 5}).raw(0, {0, 7}, {0, 5}));
  }
}

TEST_F(Npy, ArraysAreImagesWhereverTheirChannelsStand) {
  EXPECT_THAT(rgb(npy("|u1", "(2, 2, 3)", counting(12)), {1, 2}, {0, 2}), ElementsAre(6, 7, 8, 9, 10, 11));
  EXPECT_THAT(rgb(npy("|u1", "(3, 2, 2)", counting(12)), {1, 2}, {0, 2}), ElementsAre(2, 6, 10, 3, 7, 11));
  EXPECT_THAT(rgb(npy("|u1", "(2, 3)", counting(6)), {0, 2}, {1, 2}), ElementsAre(1, 1, 1, 4, 4, 4));
  EXPECT_THAT(rgb(npy("|u1", "(1, 2, 3)", counting(6)), {0, 1}, {1, 2}), ElementsAre(3, 4, 5)) << "1 x 2 pixels";
  EXPECT_THAT(rgb(npy("|u1", "(1, 2, 4)", std::string("\12\24\36\0\12\24\36\xff", 8)), {0, 1}, {0, 2}),
              ElementsAre(255, 255, 255, 10, 20, 30))
      << "transparent is white";
}

TEST_F(Npy, MasksHaveOneChannel) {
  const std::string path = folder_.write("m.npy", npy("<u2", "(1, 2)", std::string("\1\0\0\2", 4)));
  const ImageHeader header = read_header(path);
  std::vector<int> labels;
  open_image(path, header, header.levels.front(), PixelKind::labels())
      ->for_each_row({0, 1}, {0, 2}, [&](const void* row) {
        labels.assign(static_cast<const std::uint16_t*>(row), static_cast<const std::uint16_t*>(row) + 2);
      });
  EXPECT_THAT(labels, ElementsAre(1, 512));
  const std::string colours = folder_.write("c.npy", npy("|u1", "(2, 2, 3)", counting(12)));
  EXPECT_THROW(open_image(colours, read_header(colours), ImageLevel{}, PixelKind::labels()), Error);
  const std::string truth = folder_.write("t.npy", npy("|b1", "(2, 2)", std::string("\1\0\0\1", 4)));
  EXPECT_NO_THROW(open_image(truth, read_header(truth), ImageLevel{}, PixelKind::labels()));
  EXPECT_THROW(open_image(truth, read_header(truth), ImageLevel{}, PixelKind{}), Error) << "nearly black";
}

TEST_F(Npy, WhatIsNoImageIsNamed) {
  EXPECT_THAT(refusal("abc"),
              HasSubstr("x.npy' is not a file of numpy.save(): it does not begin with the magic bytes"));
  EXPECT_THAT(refusal(npy("<c8", "(2, 2)", std::string(32, 'x'))),
              HasSubstr("type '<c8'; save it as uint8, uint16 or"));
  EXPECT_THAT(refusal(npy(">u2", "(2, 2)", std::string(8, 'x'))), HasSubstr("type '>u2'"));
  EXPECT_THAT(refusal(npy("|u1", "(2, 2)", "abcd", "True")), HasSubstr("numpy.ascontiguousarray()"));
  EXPECT_THAT(refusal(npy("|u1", "(1, 5, 2, 2, 3)", counting(60))), HasSubstr("is an array of 1x5x2x2x3; an image is"));
  EXPECT_THAT(refusal(npy("|u1", "(2, 2, 7)", counting(28))), HasSubstr("is an array of 2x2x7"));
  EXPECT_THAT(refusal(npy("|u1", "()", "a")), HasSubstr("one number"));
  EXPECT_THAT(refusal(npy("|u1", "(0, 5)", "")), HasSubstr("is empty"));
  EXPECT_THAT(refusal(npy("|u1", "(2, 2, 3)", counting(11))), HasSubstr("is cut short"));
  EXPECT_THAT(refusal(npy("|u1", "(99999999999, 99999999999)", "")), HasSubstr("cannot be"));
  EXPECT_THAT(refusal(npy("|u1", "(2, -2)", "abcd")), HasSubstr("is not a number"));
  EXPECT_THAT(refusal(npy("|u1", "(2, 2)", "abcd").substr(0, 40)), HasSubstr("cut short"));
}

TEST_F(Npy, FilesAreADataSetLikeAnyOther) {
  folder_.write("a/1.npy", npy("|u1", "(2, 2, 3)", counting(12)));
  folder_.write("b/2.npy", npy("|u1", "(3, 2, 2)", counting(12)));
  const VipsImages images({.path = folder_.path(), .height = 2, .width = 2, .mean = {0, 0, 0}, .deviation = {1, 1, 1}});
  ASSERT_EQ(images.size(), 2);
  const at::Tensor out = at::empty({3, 2, 2}, at::kDouble);
  images.read(0, {0, 2}, {0, 2}, out);
  EXPECT_TRUE(at::allclose(out * 255, at::arange(12, at::kDouble).view({2, 2, 3}).permute({2, 0, 1})));
  images.read(1, {0, 2}, {0, 2}, out);
  EXPECT_TRUE(at::allclose(out * 255, at::arange(12, at::kDouble).view({3, 2, 2})));
}

}  // namespace
}  // namespace tessera
