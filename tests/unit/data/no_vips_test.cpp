// In place of vips_images_test.cpp where there is no libvips.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "temp_folder.h"
#include "tessera/base/error.h"
#include "tessera/data/vips_images.h"

namespace tessera {
namespace {

TEST(NoVips, ImageFilesAreRefusedWithAWayOut) {
  EXPECT_FALSE(has_vips());
  EXPECT_EQ(vips_version(), "");
  try {
    const TempFolder folder;
    folder.write("a/1.png", "x");
    VipsImages images({.path = folder.path()});
    ADD_FAILURE() << "no error";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), testing::AllOf(testing::HasSubstr("without libvips"), testing::HasSubstr("libvips-dev")));
  }
}

}  // namespace
}  // namespace tessera
