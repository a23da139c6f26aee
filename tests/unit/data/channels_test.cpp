// Images of any number of channels, of 8 and 16 bits and of floats: every number arrives as it is in the file.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <limits>

#include "npy_bytes.h"
#include "reading.h"
#include "temp_folder.h"
#include "tessera/data/data_kind.h"
#include "tessera/data/loader.h"
#include "tessera/data/vips_images.h"

namespace tessera {
namespace {

using testing::HasSubstr;

constexpr std::int64_t height = 15, width = 18;

template <class Number>
std::vector<Number> some_numbers(std::int64_t count) {
  std::vector<Number> out;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto mixed = static_cast<std::uint32_t>(i + 1) * 2654435761u;
    out.push_back(std::is_same_v<Number, float> ? static_cast<Number>(static_cast<double>(mixed) / 1e6 - 2000.0 / 7)
                                                : static_cast<Number>(mixed >> 11));
  }
  return out;
}

class Channels : public testing::Test {
 protected:
  template <class Number>
  void write(const std::string& type, std::int64_t channels) const {
    folder_.write("a/1.npy", npy(type, concat("(", height, ", ", width, ", ", channels, ")"),
                                 bytes_of_all(some_numbers<Number>(height * width * channels))));
  }
  VipsImages images(std::int64_t channels, std::int64_t h = height, std::int64_t w = width) const {
    return VipsImages(options_for(channels, h, w));
  }
  VipsOptions options_for(std::int64_t channels, std::int64_t h, std::int64_t w) const {
    VipsOptions options{.path = folder_.path(), .height = h, .width = w, .channels = channels};
    for (std::int64_t c = 0; c < channels; ++c) {
      options.mean.push_back(0.1 * static_cast<double>(c));
      options.deviation.push_back(0.3 + static_cast<double>(c));
    }
    return options;
  }
  std::string refusal(const std::function<void()>& run) const {
    try {
      run();
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }
  template <class Number>
  void expect_as_in_file(const std::string& type, double one) const {
    for (const std::int64_t channels : {1, 3, 4, 13}) {
      write<Number>(type, channels);
      const auto source = images(channels);
      const at::Tensor values = read_whole(source, 0), rounded = read_whole(source, 0, at::kFloat);
      ASSERT_EQ(values.sizes(), at::IntArrayRef({channels, height, width}));
      const auto numbers = some_numbers<Number>(height * width * channels);
      for (std::int64_t y = 0; y < height; ++y)
        for (std::int64_t x = 0; x < width; ++x)
          for (std::int64_t c = 0; c < channels; ++c) {
            const auto number = static_cast<double>(numbers[static_cast<std::size_t>((y * width + x) * channels + c)]);
            const double mean = 0.1 * static_cast<double>(c), deviation = 0.3 + static_cast<double>(c);
            const double value = values[c][y][x].item<double>();
            ASSERT_DOUBLE_EQ(value, (number - one * mean) * (1 / (one * deviation))) << type << " " << channels;
            ASSERT_EQ(rounded[c][y][x].item<float>(), static_cast<float>(value));
          }
      expect_boxes_of(source, values);
      const auto stretched = images(channels, 11, 23);
      expect_boxes_of(stretched, read_whole(stretched, 0));
      expect_finished(source, values);
    }
  }
  static void expect_boxes_of(const VipsImages& source, const at::Tensor& whole) {
    for (const auto& [rows, columns] : some_boxes(whole.size(1), whole.size(2)))
      EXPECT_TRUE(at::equal(read(source, 0, rows, columns), crop(whole, rows, columns))) << rows << columns;
  }
  static void expect_finished(const VipsImages& source, const at::Tensor& whole) {
    const Interval rows{2, 8}, columns{3, 17};
    const auto raw = source.raw(0, rows, columns);
    ASSERT_TRUE(raw);
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(raw->bytes()));
    source.read_bytes(0, rows, columns, bytes.data());
    const at::Tensor finished = at::empty({whole.size(0), rows.size(), columns.size()}, at::kDouble);
    finish(*raw, bytes.data(), finished);
    EXPECT_TRUE(at::equal(finished, crop(whole, rows, columns)));
  }
  const TempFolder folder_;
};

TEST_F(Channels, OfBytesAreAllRead) { expect_as_in_file<std::uint8_t>("|u1", 255); }
TEST_F(Channels, OfSixteenBitsKeepAllOfThem) { expect_as_in_file<std::uint16_t>("<u2", 65535); }
TEST_F(Channels, OfFloatsAreTakenAsTheyAre) { expect_as_in_file<float>("<f4", 1); }

TEST_F(Channels, OfOtherNumbersAreTakenAsFloats) {
  const std::vector<double> wanted{-3, 0, 1, 120};
  const auto expect = [&](const std::string& type, const std::string& bytes) {
    folder_.write("a/1.npy", npy(type, "(1, 4, 1)", bytes));
    const VipsImages source(
        {.path = folder_.path(), .height = 1, .width = 4, .channels = 1, .mean = {0}, .deviation = {1}});
    EXPECT_TRUE(at::equal(read_whole(source, 0).flatten(), at::tensor(wanted, at::kDouble))) << type;
  };
  expect("|i1", bytes_of_all<std::int8_t>({-3, 0, 1, 120}));
  expect("<i2", bytes_of_all<std::int16_t>({-3, 0, 1, 120}));
  expect("<i4", bytes_of_all<std::int32_t>({-3, 0, 1, 120}));
  expect("<f2", bytes_of_all<std::uint16_t>({0xc200, 0, 0x3c00, 0x5780}));
  expect("<f8", bytes_of_all<double>({-3, 0, 1, 120}));
}

TEST_F(Channels, BeforeThePixelsAreFoundWhereTheyAreFew) {
  folder_.write("a/1.npy", npy("<u2", "(2, 5, 6)", bytes_of_all(some_numbers<std::uint16_t>(60))));
  const VipsImages source(
      {.path = folder_.path(), .height = 5, .width = 6, .channels = 2, .mean = {0}, .deviation = {1}});
  const auto numbers = some_numbers<std::uint16_t>(60);
  EXPECT_NEAR(read_whole(source, 0)[1][2][3].item<double>() * 65535, numbers[30 + 2 * 6 + 3], 1e-9);
  expect_boxes_of(source, read_whole(source, 0));
  folder_.write("a/1.npy", npy("|u1", "(9, 9, 20)", counting(9 * 9 * 20)));
  EXPECT_THAT(refusal([&] { read_header(folder_ / "a/1.npy"); }), HasSubstr("fewer channels than rows and columns"));
  folder_.write("a/1.npy", npy("|u1", "(1, 9, 9, 20)", counting(9 * 9 * 20)));
  EXPECT_EQ(read_header(folder_ / "a/1.npy").format.channels, 20);
}

TEST_F(Channels, FloatsThatAreNoNumbersAreNamed) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    std::vector<float> numbers(60, 1.5f);
    numbers[(1 * 6 + 2) * 2 + 1] = bad;
    folder_.write("a/1.npy", npy("<f4", "(5, 6, 2)", bytes_of_all(numbers)));
    const VipsImages source({.path = folder_.path(), .height = 5, .width = 6, .channels = 2});
    EXPECT_THAT(refusal([&] { read_whole(source, 0); }),
                testing::AllOf(HasSubstr("a/1.npy' has the value"), HasSubstr("row 1, column 2, channel 1")));
    EXPECT_THAT(source.fault_of(0), HasSubstr("row 1, column 2, channel 1"));
    EXPECT_NO_THROW(read(source, 0, {2, 3}, {0, 6}));
  }
  folder_.write("a/1.npy", npy("<f8", "(1, 2)", bytes_of_all<double>({1, 1e300})));
  const VipsImages source({.path = folder_.path(), .height = 1, .width = 2, .channels = 1});
  EXPECT_THAT(refusal([&] { read_whole(source, 0); }), HasSubstr("has the value inf")) << "more than float32 holds";
}

TEST_F(Channels, ThatDifferAreNamedWithBothNumbers) {
  write<std::uint16_t>("<u2", 4);
  EXPECT_THAT(refusal([&] { read_whole(images(13), 0); }),
              HasSubstr("has 4 channels of uint16, and the others, or the network, 13"));
  EXPECT_NO_THROW(read_whole(images(3), 0)) << "transparency on white";
  EXPECT_THAT(refusal([&] {
                VipsImages({.path = folder_.path(), .channels = 4, .mean = {1, 2}});
              }),
              HasSubstr("--mean has 2 numbers, and the images have 4 channels"));
}

TEST_F(Channels, HaveAUsualNormalisation) {
  write<std::uint8_t>("|u1", 4);
  const auto of = [&](std::int64_t channels) {
    return VipsImages({.path = folder_.path(), .channels = channels}).normalisation();
  };
  EXPECT_THAT(of(3).mean, testing::ElementsAre(0.485, 0.456, 0.406));
  EXPECT_THAT(of(2).mean, testing::ElementsAre(0.5, 0.5));
  EXPECT_THAT(of(2).deviation, testing::ElementsAre(0.25, 0.25));
  EXPECT_THAT(default_normalisation(1, true).mean, testing::ElementsAre(0));
  EXPECT_THAT(default_normalisation(1, true).deviation, testing::ElementsAre(1));
}

TEST_F(Channels, OfLargeNumbersTravelAsTheyAre) {
  folder_.write("a/1.npy", npy("<u2", "(15, 18, 4)", bytes_of_all(some_numbers<std::uint16_t>(1080))));
  folder_.write("a/2.npy", npy("<f4", "(15, 18, 4)", bytes_of_all(some_numbers<float>(1080))));
  folder_.write("a/3.npy", npy("|u1", "(15, 18, 4)", bytes_of_all(some_numbers<std::uint8_t>(1080))));
  const auto source = std::make_shared<VipsImages>(options_for(4, height, width));
  LoaderOptions options{.batch_size = 3, .shuffle = false};
  Loader values(source, options);
  int finished = 0;
  options.deliver = at::TensorOptions().dtype(at::kFloat);
  options.finish_there = [&](const RawImage& raw, const at::Tensor& bytes, const at::Tensor& out) {
    ++finished;
    EXPECT_EQ(bytes.numel(), raw.bytes());
    finish(raw, bytes.data_ptr<std::uint8_t>(), out);
  };
  Loader as_bytes(source, options);
  EXPECT_TRUE(at::equal(values.next().images, as_bytes.next().images));
  EXPECT_EQ(finished, 1) << "those of other types than the first travel as values";
}

TEST_F(Channels, OfLargeImagesTravelInBands) {
  constexpr std::int64_t side = 500;
  folder_.write("a/1.npy", npy("<u2", "(500, 500, 4)", bytes_of_all(some_numbers<std::uint16_t>(side * side * 4))));
  const auto source = std::make_shared<VipsImages>(options_for(4, side, side));
  LoaderOptions options{.batch_size = 1};
  Loader values(source, options);
  options.workers = 4;
  options.deliver = at::TensorOptions().dtype(at::kFloat);
  options.finish_there = [](const RawImage& raw, const at::Tensor& bytes, const at::Tensor& out) {
    finish(raw, bytes.data_ptr<std::uint8_t>(), out);
  };
  Loader as_bytes(source, options);
  EXPECT_TRUE(at::equal(values.next().images, as_bytes.next().images));
}

TEST_F(Channels, PicturesForPeopleShowTheRangeOfNumbers) {
  folder_.write("a/1.npy", npy("<u2", "(1, 2, 1)", bytes_of_all<std::uint16_t>({100, 300})));
  const VipsImages grey({.path = folder_.path(), .height = 1, .width = 2, .channels = 1});
  EXPECT_TRUE(at::equal(grey.thumbnail(0, {1, 2}), at::tensor({0, 0, 0, 255, 255, 255}, at::kByte).view({1, 2, 3})));
  write<std::uint8_t>("|u1", 13);
  EXPECT_EQ(images(13).thumbnail(0, {height, width})[2][3][1].item<int>(),
            some_numbers<std::uint8_t>(4000)[(2 * width + 3) * 13 + 1]);
}

}  // namespace
}  // namespace tessera
