// The numbers that image files are made of. None is narrowed on its way to a network: 16 bits stay 16.
#pragma once

#include <cstdint>
#include <string>

#include "tessera/base/error.h"

namespace tessera {

enum class PixelType { uint8, uint16, float32 };

inline const char* name_of(PixelType type) {
  return type == PixelType::uint8 ? "uint8" : type == PixelType::uint16 ? "uint16" : "float32";
}
inline std::int64_t bytes_of(PixelType type) {
  return type == PixelType::uint8 ? 1 : type == PixelType::uint16 ? 2 : 4;
}
/// The number that stands for 1: integers are shares of their largest, floats are what they are.
inline double one_of(PixelType type) { return type == PixelType::uint8 ? 255 : type == PixelType::uint16 ? 65535 : 1; }

/// "4 channels of uint16"
struct PixelFormat {
  std::int64_t channels = 3;
  PixelType type = PixelType::uint8;

  std::int64_t bytes() const { return channels * bytes_of(type); }
  std::string text() const { return concat(channels, channels == 1 ? " channel of " : " channels of ", name_of(type)); }
  friend bool operator==(const PixelFormat&, const PixelFormat&) = default;
};

/// Calls run.operator()<Number>() with the type of the numbers.
template <class Run>
void with_numbers(PixelType type, const Run& run) {
  if (type == PixelType::uint8)
    run.template operator()<std::uint8_t>();
  else if (type == PixelType::uint16)
    run.template operator()<std::uint16_t>();
  else
    run.template operator()<float>();
}

}  // namespace tessera
