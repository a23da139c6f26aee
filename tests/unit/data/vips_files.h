// Image files of one test, and a source of them.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "picture.h"
#include "reading.h"
#include "temp_folder.h"
#include "tessera/base/error.h"
#include "tessera/data/vips_images.h"

namespace tessera {

class VipsFiles : public testing::Test {
 protected:
  /// A source of this one file, of raw bytes: mean 0 and deviation 1/255.
  std::unique_ptr<VipsImages> open(const std::string& name, std::int64_t height, std::int64_t width) const {
    folder_.write("list.csv", name + ",0\n");
    return std::make_unique<VipsImages>(raw(height, width));
  }
  VipsOptions raw(std::int64_t height, std::int64_t width) const {
    const double byte = 1 / 255.0;
    return {.path = folder_ / "list.csv",
            .height = height,
            .width = width,
            .mean = {0, 0, 0},
            .deviation = {byte, byte, byte}};
  }
  std::string refusal_of_reading(const std::string& name) const {
    const auto source = open(name, 64, 64);  // opening looks at no header
    try {
      read_whole(*source, 0);
    } catch (const UsageError& error) {
      return concat("a usage error: ", error.what());
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }
  TempFolder folder_;
};

}  // namespace tessera
