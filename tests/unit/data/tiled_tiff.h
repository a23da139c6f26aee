// A pyramidal tiled TIFF of any size in a few megabytes and no time: all tiles of a level are one of four, and a file
// may name the same bytes as often as it likes.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace tessera {

constexpr std::int64_t tiff_tile = 256;

/// The byte at a place of a level; levels have nothing to do with each other, so that a test sees which one was read.
inline std::uint8_t tiff_byte(int level, std::int64_t y, std::int64_t x, int channel) {
  const std::int64_t kind = (y / tiff_tile * 3 + x / tiff_tile) % 4;
  return static_cast<std::uint8_t>(53 * level + 61 * kind + 3 * (y % tiff_tile) + 5 * (x % tiff_tile) + 70 * channel);
}

/// Height and width of each of its pages.
using TiffPages = std::vector<std::pair<std::int64_t, std::int64_t>>;

/// With the right description ("Aperio...") it is a slide to OpenSlide.
inline std::string tiled_tiff(const TiffPages& pages, const std::string& description = "a test") {
  std::string out("II*\0\0\0\0\0", 8);
  const auto put = [&](std::uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) out += static_cast<char>(value >> (8 * i) & 255);
  };
  const auto patch = [&](std::size_t at, std::uint64_t value) {
    for (std::size_t i = 0; i < 4; ++i) out[at + i] = static_cast<char>(value >> (8 * i) & 255);
  };
  std::size_t link = 4;  // where the place of the next directory is written
  for (int level = 0; level < static_cast<int>(pages.size()); ++level) {
    const auto [height, width] = pages[static_cast<std::size_t>(level)];
    std::vector<std::size_t> kinds;
    for (std::int64_t kind = 0; kind < 4; ++kind) {
      kinds.push_back(out.size());
      for (std::int64_t y = 0; y < tiff_tile; ++y)
        for (std::int64_t x = 0; x < tiff_tile; ++x)
          for (int c = 0; c < 3; ++c) put(tiff_byte(level, y, kind * tiff_tile + x, c), 1);
    }
    const std::int64_t down = (height + tiff_tile - 1) / tiff_tile, across = (width + tiff_tile - 1) / tiff_tile;
    const std::size_t places = out.size();
    for (std::int64_t y = 0; y < down; ++y)
      for (std::int64_t x = 0; x < across; ++x) put(kinds[static_cast<std::size_t>((y * 3 + x) % 4)], 4);
    const std::size_t sizes = out.size();
    for (std::int64_t i = 0; i < down * across; ++i) put(tiff_tile * tiff_tile * 3, 4);
    const std::size_t bits = out.size();
    for (int c = 0; c < 3; ++c) put(8, 2);
    const std::size_t words = out.size();
    out += description + std::string(2 - description.size() % 2, '\0');
    patch(link, out.size());
    const auto tiles = static_cast<std::uint64_t>(down * across);
    const auto entry = [&](int tag, int type, std::uint64_t count, std::uint64_t value) {
      put(static_cast<std::uint64_t>(tag), 2), put(static_cast<std::uint64_t>(type), 2), put(count, 4), put(value, 4);
    };
    put(13, 2);
    entry(254, 4, 1, level > 0);  // a reduced version
    entry(256, 4, 1, static_cast<std::uint64_t>(width));
    entry(257, 4, 1, static_cast<std::uint64_t>(height));
    entry(258, 3, 3, bits);
    entry(259, 3, 1, 1);  // not compressed
    entry(262, 3, 1, 2);  // RGB
    entry(270, 2, description.size() + 1, words);
    entry(277, 3, 1, 3);
    entry(284, 3, 1, 1);  // channels together
    entry(322, 4, 1, tiff_tile);
    entry(323, 4, 1, tiff_tile);
    entry(324, 4, tiles, places);
    entry(325, 4, tiles, sizes);
    link = out.size();
    put(0, 4);
  }
  return out;
}

/// Levels are halved and rounded down.
inline std::string tiled_tiff(std::int64_t height, std::int64_t width, int levels,
                              const std::string& description = "a test") {
  TiffPages pages;
  for (int i = 0; i < levels; ++i) pages.emplace_back(height >> i, width >> i);
  return tiled_tiff(pages, description);
}

}  // namespace tessera
