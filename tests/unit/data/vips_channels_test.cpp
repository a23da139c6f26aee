// Channels and types of files that libvips reads: TIFF as measured, pictures as people see them.
#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include "vips_files.h"

namespace tessera {
namespace {

template <class Value>
Picture<Value> measured(std::int64_t channels) {
  Picture<Value> picture(40, 50, channels);
  for (std::size_t i = 0; i < picture.values.size(); ++i) {
    const std::uint32_t mixed = static_cast<std::uint32_t>(i + 1) * 2654435761u;
    picture.values[i] = std::is_same_v<Value, float> ? static_cast<Value>(static_cast<double>(mixed) / 1e5 - 9000)
                                                     : static_cast<Value>(mixed >> 9);
  }
  return picture;
}

template <class Value>
at::Tensor tensor_of(const Picture<Value>& picture) {
  const at::Tensor out = at::empty({picture.height, picture.width, picture.channels}, at::kDouble);
  std::copy(picture.values.begin(), picture.values.end(), out.data_ptr<double>());
  return out.permute({2, 0, 1});
}

class VipsChannels : public VipsFiles {
 protected:
  VipsImages numbers_of(const std::string& name, double one, std::int64_t height = 40, std::int64_t width = 50) const {
    const std::int64_t channels = read_header(folder_ / name).format.channels;
    folder_.write("list.csv", name + ",0\n");
    return VipsImages({.path = folder_ / "list.csv",
                       .height = height,
                       .width = width,
                       .channels = channels,
                       .mean = {0},
                       .deviation = {1 / one}});
  }
  template <class Value>
  void expect_as_in_tiff(double one, PixelType type) const {
    for (const std::int64_t channels : {1, 2, 3, 4, 13})
      for (const char* how : {"", "[tile,tile-width=16,tile-height=16]"}) {
        const auto picture = measured<Value>(channels);
        picture.save(folder_ / "a.tif", how);
        EXPECT_EQ(read_header(folder_ / "a.tif").format, (PixelFormat{channels, type}));
        const VipsImages source = numbers_of("a.tif", one);
        const at::Tensor whole = read_whole(source, 0);
        EXPECT_TRUE(at::allclose(whole, tensor_of(picture), 1e-14, 0)) << channels << how;
        for (const std::int64_t height : {40, 23}) {
          const VipsImages images = numbers_of("a.tif", one, height, height == 40 ? 50 : 61);
          const at::Tensor all = read_whole(images, 0);
          for (const auto& [rows, columns] : some_boxes(all.size(1), all.size(2)))
            EXPECT_TRUE(at::equal(read(images, 0, rows, columns), crop(all, rows, columns))) << channels << how;
        }
      }
  }
};

TEST_F(VipsChannels, OfTiffOfBytes) { expect_as_in_tiff<std::uint8_t>(255, PixelType::uint8); }
TEST_F(VipsChannels, OfTiffOfSixteenBits) { expect_as_in_tiff<std::uint16_t>(65535, PixelType::uint16); }
TEST_F(VipsChannels, OfTiffOfFloats) { expect_as_in_tiff<float>(1, PixelType::float32); }

TEST_F(VipsChannels, OfPngAreGreyOrColoursWithoutTransparency) {
  for (const std::int64_t channels : {1, 2, 3, 4}) {
    rough_picture(8, 9, channels).save(folder_ / "a.png");
    measured<std::uint16_t>(channels).save(folder_ / "b.png");
    const std::int64_t seen = channels < 3 ? 1 : 3;
    EXPECT_EQ(read_header(folder_ / "a.png").format, (PixelFormat{seen, PixelType::uint8}));
    EXPECT_EQ(read_header(folder_ / "b.png").format, (PixelFormat{seen, PixelType::uint16}));
    if (channels == seen) {
      EXPECT_TRUE(
          at::allclose(read_whole(numbers_of("b.png", 65535), 0), tensor_of(measured<std::uint16_t>(seen)), 1e-14, 0));
    }
  }
}

TEST_F(VipsChannels, FloatsThatAreNoNumbersAreNamed) {
  auto picture = measured<float>(2);
  picture.at(30, 7, 1) = std::nanf("");
  picture.save(folder_ / "a.tif");
  const VipsImages source = numbers_of("a.tif", 1);
  EXPECT_THAT(
      [&] { read_whole(source, 0); },
      testing::ThrowsMessage<Error>(testing::HasSubstr("a.tif' has the value nan in row 30, column 7, channel 1")));
}

}  // namespace
}  // namespace tessera
