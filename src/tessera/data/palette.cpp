#include "tessera/data/palette.h"

#include <array>
#include <cstring>
#include <fstream>

namespace tessera {
namespace {

std::uint32_t big_endian(const char* bytes) {
  std::uint32_t value = 0;
  for (int i = 0; i < 4; ++i) value = value << 8 | static_cast<unsigned char>(bytes[i]);
  return value;
}

std::uint32_t key_of(const std::uint8_t* rgb) {
  return static_cast<std::uint32_t>(rgb[0]) << 16 | static_cast<std::uint32_t>(rgb[1]) << 8 | rgb[2];
}

}  // namespace

Palette::Palette(const std::string& colours) {
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(colours.data());
  for (std::size_t i = 0; i + 3 <= colours.size(); i += 3)
    number_of_.emplace(key_of(bytes + i), static_cast<std::uint16_t>(i / 3));
}

const std::vector<std::uint16_t>& Palette::numbers_of(const std::uint8_t* rgb, std::int64_t pixels) {
  row_.resize(static_cast<std::size_t>(pixels));
  for (std::uint16_t& number : row_) {
    const auto found = number_of_.find(key_of(rgb));
    number = found == number_of_.end() ? UINT16_MAX : found->second;  // no class: the reader says where
    rgb += 3;
  }
  return row_;
}

// A PNG file is a signature and chunks: length, type, data, checksum. The palette comes before the pixels.
Palette palette_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::array<char, 8> start{};
  in.read(start.data(), start.size());
  if (!in || std::memcmp(start.data(), "\x89PNG\r\n\x1a\n", 8) != 0) return {};
  for (;;) {
    in.read(start.data(), start.size());
    const std::uint32_t length = big_endian(start.data());
    const std::string type(start.data() + 4, 4);
    if (!in || type == "IDAT" || type == "IEND") return {};
    if (type == "PLTE" && length <= 768) {
      std::string colours(length, '\0');
      in.read(colours.data(), length);
      return in ? Palette(colours) : Palette();
    }
    if (type == "IHDR") {
      std::array<char, 13> header{};
      in.read(header.data(), header.size());
      constexpr char palette = 3;
      if (!in || length != 13 || header[9] != palette) return {};  // a PLTE of others is a suggestion
      in.seekg(4, std::ios::cur);
    } else {
      in.seekg(static_cast<std::streamoff>(length) + 4, std::ios::cur);
    }
  }
}

}  // namespace tessera
