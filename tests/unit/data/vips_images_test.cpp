#include "tessera/data/vips_images.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <thread>

#include "reading.h"
#include "tessera/base/error.h"
#include "tessera/data/augmented.h"
#include "tessera/data/files.h"
#include "tessera/data/loader.h"
#include "tessera/data/resample.h"
#include "tiled_tiff.h"
#include "vips_files.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::HasSubstr;

/// The triangle filter, by its definition, on the whole image; window in pixels of the image.
at::Tensor stretched(const Picture<>& picture, std::int64_t height, std::int64_t width, double top, double left,
                     double window_height, double window_width) {
  const auto weights = [](std::int64_t size, std::int64_t source, double begin, double length) {
    at::Tensor out = at::empty({size, source}, at::TensorOptions().dtype(at::kDouble));
    const double scale = length / static_cast<double>(size), support = std::max(1.0, scale);
    double* weight = out.data_ptr<double>();
    for (std::int64_t i = 0; i < size; ++i)
      for (std::int64_t k = 0; k < source; ++k)
        *weight++ = std::max(0.0, 1 - std::abs(double(k) + 0.5 - begin - (double(i) + 0.5) * scale) / support);
    return out / out.sum(1, true);
  };
  at::Tensor image = at::empty({3, picture.height, picture.width}, at::TensorOptions().dtype(at::kDouble));
  double* pixel = image.data_ptr<double>();
  for (std::int64_t c = 0; c < 3; ++c)
    for (std::int64_t y = 0; y < picture.height; ++y)
      for (std::int64_t x = 0; x < picture.width; ++x) *pixel++ = picture.at(y, x, c);
  return weights(height, picture.height, top, window_height)
      .matmul(image)
      .matmul(weights(width, picture.width, left, window_width).t());
}

TEST(Vips, SaysItsVersion) {
  EXPECT_TRUE(has_vips());
  EXPECT_THAT(vips_version(), testing::MatchesRegex("[0-9]+\\.[0-9]+\\.[0-9]+"));
}

TEST_F(VipsFiles, AtItsOwnSizeEveryPixelIsItsByteNormalised) {
  const Picture<> picture = rough_picture(37, 53);
  picture.save(folder_ / "a.png");
  folder_.write("list.csv", "a.png,0\n");
  VipsOptions options = raw(37, 53);
  options.mean = {0.485, 0.456, 0.406};
  options.deviation = {0.229, 0.224, 0.225};
  const VipsImages source(options);
  EXPECT_THAT(source.normalisation().mean, testing::ElementsAre(0.485, 0.456, 0.406));
  EXPECT_THAT(source.normalisation().deviation, testing::ElementsAre(0.229, 0.224, 0.225));
  const at::Tensor image = read_whole(source, 0);
  for (const auto& [y, x] : {std::pair{0, 0}, {0, 52}, {36, 0}, {36, 52}, {20, 31}})
    for (int c = 0; c < 3; ++c) {
      const auto k = static_cast<std::size_t>(c);
      EXPECT_NEAR(image[c][y][x].item<double>(), (picture.at(y, x, c) / 255.0 - options.mean[k]) / options.deviation[k],
                  1e-12);
    }
}

TEST_F(VipsFiles, AnyBoxIsTheCropOfTheWholeForEveryFormatSizeAndType) {
  const Picture<> picture = rough_picture(300, 500);
  picture.save(folder_ / "a.png");
  picture.save(folder_ / "a.jpg", "[Q=90]");
  picture.save(folder_ / "strips.tif");
  picture.save(folder_ / "pyramid.tif", "[tile,tile_width=64,tile_height=64,pyramid,compression=jpeg,Q=80]");
  picture.save(folder_ / "subifd.tif", "[tile,tile_width=64,tile_height=64,pyramid,subifd,compression=deflate]");
  rough_picture(300, 500, 1).save(folder_ / "grey.png");
  rough_picture(300, 500, 4).save(folder_ / "alpha.png");
  for (const char* name : {"a.png", "a.jpg", "strips.tif", "pyramid.tif", "subifd.tif", "grey.png", "alpha.png"})
    for (const auto& [height, width] : {std::pair{300, 500}, {113, 201}, {31, 47}, {411, 700}, {100, 600}}) {
      const auto source = open(name, height, width);
      const at::Tensor whole = read_whole(*source, 0), rounded = read_whole(*source, 0, at::kFloat);
      EXPECT_TRUE(at::equal(whole.to(at::kFloat), rounded)) << name;
      for (const auto& [rows, columns] : some_boxes(height, width)) {
        EXPECT_TRUE(at::equal(read(*source, 0, rows, columns), crop(whole, rows, columns)))
            << name << " as " << height << "x" << width << ", rows " << rows << ", columns " << columns;
        EXPECT_TRUE(at::equal(read(*source, 0, rows, columns, at::kFloat), crop(rounded, rows, columns))) << name;
      }
    }
}

TEST_F(VipsFiles, BoxesOfAugmentedFilesAgree) {
  const Picture<> picture = rough_picture(200, 260);
  picture.save(folder_ / "pyramid.tif", "[tile,tile_width=64,tile_height=64,pyramid]");
  picture.save(folder_ / "a.jpg");
  for (const char* name : {"pyramid.tif", "a.jpg"}) {
    const Augmented source(
        open(name, 50, 50),
        {.flip_horizontal = true, .rotate = true, .crop_min = 0.05, .brightness = 0.2, .saturation = 0.3});
    for (std::int64_t epoch = 0; epoch < 12; ++epoch) {
      const at::Tensor whole = read_whole(source, {0, epoch}, at::kFloat);
      for (const auto& [rows, columns] : some_boxes(50, 50))
        EXPECT_TRUE(at::equal(read(source, {0, epoch}, rows, columns, at::kFloat), crop(whole, rows, columns)))
            << name << ", epoch " << epoch;
    }
  }
}

TEST_F(VipsFiles, StretchingIsTheTriangleFilter) {
  const Picture<> picture = rough_picture(60, 80);
  picture.save(folder_ / "a.png");
  for (const auto& [height, width] : {std::pair{60, 80}, {25, 33}, {7, 200}, {61, 79}}) {
    const auto source = open("a.png", height, width);
    EXPECT_TRUE(at::allclose(read_whole(*source, 0), stretched(picture, height, width, 0, 0, 60, 80), 0, 0.3))
        << height << "x" << width;
    const at::Tensor out = at::empty({3, height, width}, at::TensorOptions().dtype(at::kDouble));
    source->read_window(0, {.top = 0.25, .left = 0.1, .height = 0.5, .width = 0.8}, {0, height}, {0, width}, out);
    EXPECT_TRUE(at::allclose(out, stretched(picture, height, width, 15, 8, 30, 64), 0, 0.3)) << height << "x" << width;
  }
}

TEST_F(VipsFiles, TheSmallestLevelWithEnoughPixelsIsRead) {
  folder_.write("p.tif", tiled_tiff(4000, 6001, 4));
  const auto expect_level = [&](int level, std::int64_t height, std::int64_t width, std::int64_t shrink) {
    const auto source = open("p.tif", height, width);
    const Interval rows{height / 2, height / 2 + 3}, columns{width / 2, width / 2 + 4};
    const at::Tensor part = read(*source, 0, rows, columns);
    const bool is_level = [&] {
      for (std::int64_t y = 0; y < 3; ++y)
        for (std::int64_t x = 0; x < 4; ++x)
          if (part[1][y][x].item<double>() !=
              tiff_byte(level, (rows.begin + y) * shrink, (columns.begin + x) * shrink, 1))
            return false;
      return true;
    }();
    EXPECT_TRUE(is_level) << height << "x" << width << ": " << part[1];
  };
  expect_level(0, 4000, 6001, 1);
  const auto header = read_header(folder_ / "p.tif");
  ASSERT_EQ(header.levels.size(), 4u);
  EXPECT_EQ(header.levels[3].row_shrink, 8);
  EXPECT_EQ(header.levels[3].column_shrink, 8) << "rounded down thrice";
  EXPECT_EQ(level_for(header, 1, 1).number, 0);
  EXPECT_EQ(level_for(header, 0.3, 0.3).number, 0);
  EXPECT_EQ(level_for(header, 1.99, 2.5).number, 0);
  EXPECT_EQ(level_for(header, 2, 2).number, 1);
  EXPECT_EQ(level_for(header, 3.9, 100).number, 1);
  EXPECT_EQ(level_for(header, 8, 8.1).number, 3);
  EXPECT_EQ(level_for(header, 100, 100).number, 3);

  folder_.write("even.tif", tiled_tiff(4096, 6144, 4));
  for (const auto& [level, shrink] : {std::pair{1, 2}, {2, 4}, {3, 8}}) {
    const auto source = open("even.tif", 4096 / shrink, 6144 / shrink);
    const at::Tensor part = read(*source, 0, {100, 101}, {200, 201});
    for (int c = 0; c < 3; ++c)
      EXPECT_EQ(part[c][0][0].item<double>(), tiff_byte(level, 100, 200, c)) << "level " << level;
  }
}

TEST_F(VipsFiles, ASlideIsReadByItsLevels) {
  folder_.write("a.svs", tiled_tiff(2048, 3072, 4, "Aperio Image Library v1"));
  const ImageHeader header = read_header(folder_ / "a.svs");
  ASSERT_THAT(header.loader, HasSubstr("Openslide"));
  ASSERT_EQ(header.levels.size(), 4u);
  for (const auto& [level, shrink] : {std::pair{0, 1}, {1, 2}, {2, 4}, {3, 8}}) {
    const auto source = open("a.svs", 2048 / shrink, 3072 / shrink);
    const at::Tensor part = read(*source, 0, {100, 101}, {200, 201});
    for (int c = 0; c < 3; ++c)
      EXPECT_EQ(part[c][0][0].item<double>(), tiff_byte(level, 100, 200, c)) << "level " << level;
  }
  const auto source = open("a.svs", 333, 517);
  const at::Tensor whole = read_whole(*source, 0);
  for (const auto& [rows, columns] : some_boxes(333, 517))
    EXPECT_TRUE(at::equal(read(*source, 0, rows, columns), crop(whole, rows, columns)));
}

TEST_F(VipsFiles, TheLevelFitsTheWindow) {
  folder_.write("even.tif", tiled_tiff(4096, 6144, 4));
  const auto source = open("even.tif", 512, 768);  // whole: level 3
  const at::Tensor out = at::empty({3, 1, 1}, at::TensorOptions().dtype(at::kDouble));
  source->read_window(0, {.top = 0.5, .left = 0.25, .height = 0.125, .width = 0.125}, {100, 101}, {200, 201}, out);
  for (int c = 0; c < 3; ++c) EXPECT_EQ(out[c][0][0].item<double>(), tiff_byte(0, 2048 + 100, 1536 + 200, c));
  // Narrow and high, then low and wide: the side with fewer pixels decides.
  const Taps down({0, 4096, 4096, 512}, {100, 101}), across({0, 6144, 6144, 768}, {200, 201});
  const auto mean = [](const Taps& taps, const auto& byte) {
    double sum = 0;
    for (std::int64_t k = taps.all().begin; k < taps.all().end; ++k)
      sum += taps.weights(0)[k - taps.all().begin] * byte(k);
    return sum;
  };
  source->read_window(0, {.top = 0, .left = 0.25, .height = 1, .width = 0.125}, {100, 101}, {200, 201}, out);
  EXPECT_EQ(out[1][0][0].item<double>(), mean(down, [](std::int64_t y) { return tiff_byte(0, y, 1536 + 200, 1); }));
  source->read_window(0, {.top = 0.5, .left = 0, .height = 0.125, .width = 1}, {100, 101}, {200, 201}, out);
  EXPECT_EQ(out[1][0][0].item<double>(), mean(across, [](std::int64_t x) { return tiff_byte(0, 2048 + 100, x, 1); }));
}

TEST_F(VipsFiles, PagesThatAreNotASmallerVersionAreNoLevels) {
  const auto levels = [&](const TiffPages& pages) {
    return read_header(folder_.write("pages.tif", tiled_tiff(pages))).levels.size();
  };
  EXPECT_EQ(levels({{1000, 800}, {1000, 800}}), 1u) << "another picture of the same size";
  EXPECT_EQ(levels({{1000, 800}, {500, 100}}), 1u) << "a label";
  EXPECT_EQ(levels({{1000, 800}, {500, 400}, {300, 300}, {250, 200}}), 2u) << "only up to the first that is not";
  EXPECT_EQ(levels({{1000, 800}, {500, 400}, {1000, 800}}), 2u);
  EXPECT_EQ(levels({{1000, 800}, {300, 240}, {299, 240}}), 2u) << "by any factor";
  EXPECT_EQ(levels({{1001, 803}, {501, 401}, {251, 200}}), 3u) << "rounded this way and that";
}

TEST_F(VipsFiles, AJpegIsShrunkWhileItIsDecodedAndLooksTheSame) {
  const Picture<> picture = smooth_picture(801, 1203);
  picture.save(folder_ / "a.jpg", "[Q=95]");
  EXPECT_EQ(read_header(folder_ / "a.jpg").levels.size(), 4u);
  for (const auto& [height, width] : {std::pair{100, 150}, {267, 401}, {90, 500}}) {
    const at::Tensor image = read_whole(*open("a.jpg", height, width), 0);
    EXPECT_LT((image - stretched(picture, height, width, 0, 0, 801, 1203)).abs().max().item<double>(), 4)
        << height << "x" << width;
  }
}

TEST_F(VipsFiles, GreyAndTransparencyBecomeRgbWhereThatIsAsked) {
  Picture<> grey(8, 8, 1), clear(8, 8, 4);
  for (std::int64_t y = 0; y < 8; ++y)
    for (std::int64_t x = 0; x < 8; ++x) {
      grey.at(y, x) = static_cast<std::uint8_t>(30 * y + x);
      clear.at(y, x, 1) = 100;
      clear.at(y, x, 3) = x < 4 ? 255 : 0;
    }
  grey.save(folder_ / "grey.png"), clear.save(folder_ / "clear.png"), clear.save(folder_ / "clear.tif");
  const at::Tensor a = read_whole(*open("grey.png", 8, 8), 0), c = read_whole(*open("clear.png", 8, 8), 0);
  EXPECT_TRUE(at::equal(read_whole(*open("clear.tif", 8, 8), 0), c));
  for (int k = 0; k < 3; ++k) {
    EXPECT_NEAR(a[k][3][5].item<double>(), 95, 1e-9);
    EXPECT_NEAR(c[k][2][2].item<double>(), k == 1 ? 100 : 0, 1e-9);
    EXPECT_NEAR(c[k][2][6].item<double>(), 255, 1e-9) << "nothing is white";
  }
}

/// A number from /proc/self/FILE, of the line that begins with KEY.
std::int64_t own(const std::string& file, const std::string& key) {
  std::ifstream in("/proc/self/" + file);
  for (std::string line; std::getline(in, line);)
    if (line.starts_with(key)) return std::stoll(line.substr(key.size() + 1));
  return -1;
}

TEST_F(VipsFiles, ATileOfAHugeImageCostsTheTileAndNotTheImage) {
  constexpr std::int64_t side = 30000, tile = 4096;
  folder_.write("huge.tif", tiled_tiff(side, side, 6));
  const auto source = open("huge.tif", side, side);
  const Interval rows{13000, 13000 + tile}, columns{9001, 9001 + tile};
  read(*source, 0, {0, 8}, {0, 8}, at::kFloat);  // what is kept once is not counted below
  const at::Tensor out =
      at::empty({1, 3, tile, tile}, at::TensorOptions().dtype(at::kFloat), at::MemoryFormat::ChannelsLast)[0];
  out.zero_();
  std::ofstream("/proc/self/clear_refs") << 5;  // starts the high-water mark anew
  const std::int64_t bytes_before = own("io", "rchar:"), memory_before = own("status", "VmRSS:");
  source->read(0, rows, columns, out);
  const std::int64_t bytes_read = own("io", "rchar:") - bytes_before;
  const std::int64_t kilobytes = own("status", "VmHWM:") - memory_before;
  ASSERT_GT(bytes_before, 0);
  ASSERT_GT(memory_before, 0);
  const std::int64_t box_bytes = 17 * 17 * tiff_tile * tiff_tile * 3;  // tiles that the box touches
  EXPECT_LE(bytes_read, box_bytes * 105 / 100 + (1 << 20)) << "of " << side * side * 3 << " in the image";
  EXPECT_GE(bytes_read, box_bytes);
  // Two rows of tiles (46 MB) and a few strips, of an image of 2.7 GB.
  EXPECT_LT(kilobytes, 75 * 1024);
  std::printf("read %.1f MB of 2700, %.1f MB of memory beside the tensor\n", double(bytes_read) / 1e6,
              double(kilobytes) / 1e3);
  for (const auto& [y, x] : {std::pair<std::int64_t, std::int64_t>{0, 0}, {tile - 1, tile - 1}, {1234, 3210}})
    for (int c = 0; c < 3; ++c)
      EXPECT_FLOAT_EQ(out[c][y][x].item<float>(), tiff_byte(0, rows.begin + y, columns.begin + x, c));
}

TEST_F(VipsFiles, OfFilesWithoutTilesAFewRowsAreHeld) {
  const std::int64_t height = 4000, width = 6000;  // 72 MB
  smooth_picture(height, width).save(folder_ / "a.png", "[compression=1]");
  const auto source = open("a.png", height, width);
  read(*source, 0, {0, 8}, {0, 8}, at::kFloat);
  std::ofstream("/proc/self/clear_refs") << 5;
  const std::int64_t memory_before = own("status", "VmRSS:");
  read(*source, 0, {height - 64, height}, {0, 1000}, at::kFloat);
  const std::int64_t kilobytes = own("status", "VmHWM:") - memory_before;
  EXPECT_LT(kilobytes, 24 * 1024);
  std::printf("%.1f MB of memory for a PNG of 72\n", double(kilobytes) / 1e3);
}

TEST_F(VipsFiles, SeveralThreadsReadAtOnce) {
  const Picture<> picture = rough_picture(400, 400);
  picture.save(folder_ / "a.jpg");
  picture.save(folder_ / "p.tif", "[tile,tile_width=64,tile_height=64,pyramid,compression=jpeg]");
  picture.save(folder_ / "a.png");
  folder_.write("list.csv", "a.jpg,0\np.tif,1\na.png,2\n");
  std::vector<at::Tensor> whole;
  for (std::int64_t i = 0; i < 3; ++i) whole.push_back(read_whole(VipsImages(raw(150, 170)), i));
  const VipsImages source(raw(150, 170));  // one whose headers are not read yet
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (std::int64_t t = 0; t < 6; ++t)
    threads.emplace_back([&, t] {
      for (std::int64_t i = 0; i < 12; ++i) {
        const std::int64_t index = (t + i) % 3;
        const auto boxes = some_boxes(150, 170);
        const auto& [rows, columns] = boxes[static_cast<std::size_t>((t * 5 + i) % 8)];
        wrong +=
            !at::equal(read(source, index, rows, columns), crop(whole[static_cast<std::size_t>(index)], rows, columns));
      }
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST_F(VipsFiles, ALoaderGivesTilesOfFoldersOfClasses) {
  for (const auto* name : {"train/cat/1.png", "train/cat/2.jpg", "train/dog/3.png", "train/dog/4.tif"}) {
    folder_.write(name, "");
    smooth_picture(40, 50 + 10 * (name[10] == '3')).save(folder_ / name);
  }
  const auto source = std::make_shared<VipsImages>(VipsOptions{.path = folder_.path(), .height = 32, .width = 24});
  EXPECT_EQ(source->classes(), 2);
  EXPECT_THAT(source->class_names(), testing::ElementsAre("cat", "dog"));
  EXPECT_THAT(source->describe(),
              AllOf(HasSubstr("4 images as 3x32x24"), HasSubstr("2 classes"), HasSubstr("libvips")));
  Loader whole(source, {.batch_size = 4}),
      part(source, {.batch_size = 4, .part = image_box({1, 3}, {9, 32}, {0, 13}), .workers = 2});
  for (int step = 0; step < 3; ++step) {
    const Batch a = whole.next(), b = part.next();
    EXPECT_TRUE(at::equal(b.images, crop(a.images.slice(0, 1, 3), {9, 32}, {0, 13})));
    EXPECT_TRUE(at::equal(b.labels, a.labels.slice(0, 1, 3)));
  }
}

TEST_F(VipsFiles, ABrokenFileIsNamed) {
  const Picture<> picture = rough_picture(400, 400);
  picture.save(folder_ / "a.jpg");
  picture.save(folder_ / "a.png");
  picture.save(folder_ / "strips.tif");
  picture.save(folder_ / "tiles.tif", "[tile,pyramid]");
  for (const char* name : {"a.jpg", "a.png", "strips.tif", "tiles.tif"}) {
    EXPECT_EQ(refusal_of_reading(name), "no error");
    folder_.cut(name, files::file_bytes(folder_ / name) / 2);
    EXPECT_THAT(refusal_of_reading(name),
                AllOf(HasSubstr(concat("image '", folder_ / name, "'")), testing::Not(HasSubstr("usage"))));
  }
  folder_.write("text.png", "this is no image");
  EXPECT_THAT(refusal_of_reading("text.png"), AllOf(HasSubstr("text.png' is not an image")));
  folder_.write("empty.jpg", "");
  EXPECT_THAT(refusal_of_reading("empty.jpg"), HasSubstr("empty.jpg'"));
}

// A rank that reads the upper left corner alone would not see it; all ranks must come to the same answer.
TEST_F(VipsFiles, DamageIsFoundWhereverItLies) {
  const Picture<> picture = rough_picture(400, 400);
  picture.save(folder_ / "good.jpg");
  picture.save(folder_ / "cut.jpg");
  folder_.cut("cut.jpg", files::file_bytes(folder_ / "cut.jpg") * 9 / 10);
  folder_.write("text.png", "this is no image");
  folder_.write("list.csv", "cut.jpg,0\ngood.jpg,1\ntext.png,0\n");
  VipsImages source(raw(400, 400));
  EXPECT_NO_THROW(read(source, 0, {0, 8}, {0, 8}));
  EXPECT_THAT(source.fault_of(0), HasSubstr("cut.jpg'"));
  EXPECT_EQ(source.fault_of(1), "");
  EXPECT_THAT(source.fault_of(2), HasSubstr("text.png'"));

  source.leave_out({0, 2});
  ASSERT_EQ(source.size(), 1);
  EXPECT_EQ(source.label(0), 1);
  EXPECT_EQ(source.name(0), folder_ / "good.jpg");
  EXPECT_TRUE(at::equal(read_whole(source, 0), read_whole(*open("good.jpg", 400, 400), 0)));
}

TEST_F(VipsFiles, AnErrorLeavesTheSourceUsable) {
  rough_picture(20, 20).save(folder_ / "good.png");
  folder_.write("bad.png", "no");
  folder_.write("list.csv", "bad.png,0\ngood.png,1\n");
  const VipsImages source(raw(20, 20));
  EXPECT_THROW(read_whole(source, 0), Error);
  EXPECT_NO_THROW(read_whole(source, 1));
  EXPECT_THROW(read_whole(source, 0), Error);
}

TEST_F(VipsFiles, OptionsThatCannotBeAreAllRefusedAtOnce) {
  folder_.write("list.csv", "a.png,0\n");
  VipsOptions options = raw(0, 5);
  options.deviation[1] = 0;
  options.mask_classes = 300;
  try {
    VipsImages source(options);
    ADD_FAILURE() << "no error";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("3 problems"), HasSubstr("--image-size"), HasSubstr("--std"), HasSubstr("300")));
  }
}

}  // namespace
}  // namespace tessera
