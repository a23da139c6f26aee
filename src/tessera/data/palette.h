// The palette of a PNG file, whose numbers are the labels of a mask (Pascal VOC's masks are such). libvips gives
// colours only, so the numbers are found again by them.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

namespace tessera {

class Palette {
 public:
  Palette() = default;
  /// Three bytes per colour. Of two numbers with one colour, the smaller one counts.
  explicit Palette(const std::string& colours);

  bool empty() const { return number_of_.empty(); }
  /// Of a row of RGB pixels. Good until the next call.
  const std::vector<std::uint16_t>& numbers_of(const std::uint8_t* rgb, std::int64_t pixels);

 private:
  std::unordered_map<std::uint32_t, std::uint16_t> number_of_;
  std::vector<std::uint16_t> row_;
};

/// Empty for files that are no PNG with a palette.
Palette palette_of(const std::string& path);

}  // namespace tessera
