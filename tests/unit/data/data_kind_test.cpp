#include "tessera/data/data_kind.h"

#include <gmock/gmock.h>

#include <fstream>

#include "tessera/base/error.h"
#include "tessera/data/palette.h"
#include "unit/data/temp_folder.h"

namespace tessera {
namespace {

std::string kind_refusal(const std::string& path) {
  try {
    data_kind_of(path);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(DataKind, IsFoundByTheFilesThatAreThere) {
  const TempFolder folder;
  std::ofstream(folder / "list.csv") << "path,label\n";
  EXPECT_EQ(data_kind_of(folder / "list.csv"), DataKind::image_files);
  EXPECT_EQ(data_kind_of(folder.path()), DataKind::image_files);
  std::ofstream(folder / "data_batch_1.bin") << "x";
  EXPECT_EQ(data_kind_of(folder.path()), DataKind::cifar10);
}

TEST(DataKind, OfArraysAndArchivesIsRefusedWithAWayOut) {
  const TempFolder folder;
  std::ofstream(folder / "images.npz") << "x";
  EXPECT_THAT(kind_refusal(folder / "images.npz"), testing::HasSubstr("file of arrays"));
  EXPECT_THAT(kind_refusal(folder.path()), testing::HasSubstr("images.npz"));
  EXPECT_THAT(kind_refusal(folder / "none"), testing::HasSubstr("does not exist"));
}

TEST(Palette, GivesTheNumbersOfColours) {
  Palette palette(std::string("\0\0\0\x80\0\0\0\0\0", 9));  // the third colour is the first one again
  const std::uint8_t row[] = {0x80, 0, 0, 0, 0, 0, 1, 2, 3};
  EXPECT_THAT(palette.numbers_of(row, 3), testing::ElementsAre(1, 0, 65535));
  EXPECT_TRUE(Palette().empty());
  EXPECT_TRUE(palette_of("/nowhere").empty());
}

}  // namespace
}  // namespace tessera
