#include "tessera/data/cifar10.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "temp_folder.h"
#include "tessera/base/error.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::HasSubstr;

/// Record r of file f: label (f + r) % 10; byte p of channel c is (p + 50 c + 7 r + f) % 256.
std::string records(int file, int count) {
  std::string out;
  for (int r = 0; r < count; ++r) {
    out.push_back(static_cast<char>((file + r) % 10));
    for (int p = 0; p < 3072; ++p) out.push_back(static_cast<char>((p + 50 * (p / 1024) + 7 * r + file) % 256));
  }
  return out;
}

class Cifar10Files : public testing::Test {
 protected:
  Cifar10Files() { write_all(""); }

  void write_all(const std::string& inner) const {
    for (int f = 1; f <= 5; ++f) folder_.write(concat(inner, "data_batch_", f, ".bin"), records(f, 3));
    folder_.write(inner + "test_batch.bin", records(6, 2));
  }
  std::string message_of_opening() const {
    try {
      Cifar10({.folder = folder_.path()});
    } catch (const UsageError& error) {
      return error.what();
    }
    return "no error";
  }

  TempFolder folder_;
};

TEST_F(Cifar10Files, ImagesAndLabelsComeInTheOrderOfTheFiles) {
  const Cifar10 train({.folder = folder_.path()}), test({.folder = folder_.path(), .split = Split::test});
  ASSERT_EQ(train.size(), 15);
  ASSERT_EQ(test.size(), 2);
  EXPECT_EQ(train.label(4), 3) << "record 1 of file 2";
  EXPECT_EQ(test.label(1), 7);

  const at::Tensor image = at::empty({3, 32, 32}, at::kDouble);
  train.read(4, {0, 32}, {0, 32}, image);
  const std::vector<double> mean{0.4914, 0.4822, 0.4465}, deviation{0.2470, 0.2435, 0.2616};
  EXPECT_EQ(train.normalisation().mean, mean);
  EXPECT_EQ(train.normalisation().deviation, deviation);
  for (int c = 0; c < 3; ++c)
    for (const auto& [y, x] : {std::pair{0, 0}, {0, 31}, {1, 0}, {31, 31}}) {
      const int byte = (y * 32 + x + 50 * c + 7 + 2) % 256;
      const auto channel = static_cast<std::size_t>(c);
      EXPECT_DOUBLE_EQ(image[c][y][x].item<double>(), (byte / 255.0 - mean[channel]) / deviation[channel]);
    }
}

TEST_F(Cifar10Files, AnyBoxIsTheCropOfTheWholeAndFloat32IsRounded) {
  const Cifar10 source({.folder = folder_.path()});
  const at::Tensor whole = at::empty({3, 32, 32}, at::kDouble);
  source.read(7, {0, 32}, {0, 32}, whole);
  const at::Tensor part = at::empty({1, 3, 12, 13}, at::TensorOptions(at::kFloat), at::MemoryFormat::ChannelsLast)[0];
  source.read(7, {20, 32}, {5, 18}, part);
  EXPECT_TRUE(at::equal(part, whole.slice(1, 20, 32).slice(2, 5, 18).to(at::kFloat)));
}

TEST_F(Cifar10Files, TheFolderAboveWillDo) {
  write_all("above/cifar-10-batches-bin/");
  EXPECT_EQ(Cifar10({.folder = folder_ / "above"}).size(), 15);
}

TEST_F(Cifar10Files, AMissingFolderIsNamedWithTheFlagToChange) {
  folder_.remove("");
  EXPECT_THAT(message_of_opening(), AllOf(HasSubstr(folder_.path() + "' does not exist"), HasSubstr("--datapath")));
}

TEST_F(Cifar10Files, AMissingFileIsNamed) {
  folder_.remove("data_batch_3.bin");
  EXPECT_THAT(message_of_opening(), AllOf(HasSubstr("data_batch_3.bin' is missing"), HasSubstr("--datapath")));
}

TEST_F(Cifar10Files, ATruncatedFileIsNamedWithFoundAndExpectedSizes) {
  folder_.cut("data_batch_2.bin", 5000);
  EXPECT_THAT(message_of_opening(), AllOf(HasSubstr("data_batch_2.bin"), HasSubstr("5000 bytes"), HasSubstr("30730000"),
                                          HasSubstr("3073"), HasSubstr("--datapath")));
  folder_.cut("data_batch_2.bin", 0);
  EXPECT_THAT(message_of_opening(), HasSubstr("has 0 bytes"));
}

TEST_F(Cifar10Files, ALabelAbove9IsNamedWithItsRecord) {
  auto bytes = records(5, 3);
  bytes[2 * 3073] = 10;
  folder_.write("data_batch_5.bin", bytes);
  EXPECT_THAT(message_of_opening(), AllOf(HasSubstr("data_batch_5.bin"), HasSubstr("label 10"), HasSubstr("record 2"),
                                          HasSubstr("--datapath")));
}

}  // namespace
}  // namespace tessera
