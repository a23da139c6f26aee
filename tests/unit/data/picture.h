// Small pictures, written to files by libvips.
#pragma once

#include <vips/vips.h>

#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace tessera {

/// Channels innermost; of 8 or 16 bits, or float.
template <class Value = std::uint8_t>
struct Picture {
  std::int64_t height, width, channels;
  std::vector<Value> values;

  Picture(std::int64_t h, std::int64_t w, std::int64_t c)
      : height(h), width(w), channels(c), values(static_cast<std::size_t>(h * w * c)) {}
  Value& at(std::int64_t y, std::int64_t x, std::int64_t c = 0) {
    return values[static_cast<std::size_t>((y * width + x) * channels + c)];
  }
  Value at(std::int64_t y, std::int64_t x, std::int64_t c = 0) const { return const_cast<Picture*>(this)->at(y, x, c); }

  /// The format follows from the ending; options as in "[pyramid,tile]".
  void save(const std::string& path, const std::string& options = "") const {
    if (vips_init("test") != 0) throw std::runtime_error("libvips does not start");
    VipsImage* image =
        vips_image_new_from_memory(values.data(), values.size() * sizeof(Value), int(width), int(height), int(channels),
                                   sizeof(Value) == 1   ? VIPS_FORMAT_UCHAR
                                   : sizeof(Value) == 2 ? VIPS_FORMAT_USHORT
                                                        : VIPS_FORMAT_FLOAT);
    VipsImage* typed = nullptr;
    const bool wide = sizeof(Value) == 2, grey = channels < 3;
    const auto kind = sizeof(Value) == 4 ? VIPS_INTERPRETATION_MULTIBAND
                      : grey             ? (wide ? VIPS_INTERPRETATION_GREY16 : VIPS_INTERPRETATION_B_W)
                                         : (wide ? VIPS_INTERPRETATION_RGB16 : VIPS_INTERPRETATION_sRGB);
    const bool failed = vips_copy(image, &typed, "interpretation", kind, nullptr) != 0 ||
                        vips_image_write_to_file(typed, (path + options).c_str(), nullptr) != 0;
    if (typed) g_object_unref(typed);
    g_object_unref(image);
    if (failed) throw std::runtime_error("cannot write " + path + ": " + vips_error_buffer());
  }
};

/// Every pixel different from its neighbours.
inline Picture<> rough_picture(std::int64_t height, std::int64_t width, std::int64_t channels = 3) {
  Picture<> picture(height, width, channels);
  for (std::size_t i = 0; i < picture.values.size(); ++i)
    picture.values[i] = static_cast<std::uint8_t>((i * 2654435761u) >> 13);
  return picture;
}

/// Waves of a few cycles, as smooth as photographs are.
inline Picture<> smooth_picture(std::int64_t height, std::int64_t width, std::int64_t channels = 3) {
  Picture<> picture(height, width, channels);
  for (std::int64_t y = 0; y < height; ++y)
    for (std::int64_t x = 0; x < width; ++x)
      for (std::int64_t c = 0; c < channels; ++c)
        picture.at(y, x, c) =
            static_cast<std::uint8_t>(128 + 60 * std::sin(9.0 * double(y) / double(height) + double(c)) +
                                      60 * std::cos(11.0 * double(x) / double(width)));
  return picture;
}

}  // namespace tessera
