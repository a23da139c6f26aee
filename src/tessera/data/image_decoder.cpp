#include "tessera/data/image_decoder.h"

#include <cmath>
#include <limits>
#include <type_traits>

#include "tessera/base/error.h"
#include "tessera/data/decoders.h"
#include "tessera/data/files.h"

namespace tessera {
namespace {

template <class Number>
Number on_white(Number value, Number transparency) {
  if constexpr (std::is_same_v<Number, float>) {
    return value * transparency + (1 - transparency);
  } else {
    constexpr std::int64_t most = std::numeric_limits<Number>::max();
    return static_cast<Number>((value * std::int64_t{transparency} + most * (most - transparency) + most / 2) / most);
  }
}

/// A file's numbers in another number of channels, and of floats only such as can be computed with.
class AsWanted final : public ImageDecoder {
 public:
  AsWanted(std::unique_ptr<ImageDecoder> inner, std::string path, PixelFormat format, std::int64_t channels)
      : inner_(std::move(inner)), path_(std::move(path)), format_(format), channels_(channels) {}

  std::int64_t height() const override { return inner_->height(); }
  std::int64_t width() const override { return inner_->width(); }
  void for_each_row(Interval rows, Interval columns, const std::function<void(const void*)>& take) override {
    with_numbers(format_.type, [&]<class Number>() {
      std::vector<Number> changed(
          static_cast<std::size_t>(format_.channels == channels_ ? 0 : columns.size() * channels_));
      std::int64_t y = rows.begin;
      inner_->for_each_row(rows, columns, [&](const void* row) {
        const auto* numbers = static_cast<const Number*>(row);
        if constexpr (std::is_same_v<Number, float>) check(numbers, y++, columns);
        if (changed.empty()) return take(row);
        change(numbers, columns.size(), changed.data());
        take(changed.data());
      });
    });
  }

 private:
  void check(const float* numbers, std::int64_t y, Interval columns) const {
    const std::int64_t count = columns.size() * format_.channels;
    for (std::int64_t i = 0; i < count; ++i)
      if (!std::isfinite(numbers[i]))
        throw Error(concat("image '", path_, "' has the value ",
                           std::isnan(numbers[i]) ? "nan"
                           : numbers[i] > 0       ? "inf"
                                                  : "-inf",
                           " in row ", y, ", column ", columns.begin + i / format_.channels, ", channel ",
                           i % format_.channels, "; a network can only learn from numbers"));
  }
  template <class Number>
  void change(const Number* from, std::int64_t pixels, Number* to) const {
    const std::int64_t has = format_.channels;
    const bool transparency = has % 2 == 0;
    for (std::int64_t x = 0; x < pixels; ++x, from += has)
      for (std::int64_t c = 0; c < channels_; ++c) {
        const Number value = from[has < 3 ? 0 : c];
        *to++ = transparency ? on_white(value, from[has - 1]) : value;
      }
  }

  const std::unique_ptr<ImageDecoder> inner_;
  const std::string path_;
  const PixelFormat format_;
  const std::int64_t channels_;
};

}  // namespace

bool can_become(std::int64_t has, std::int64_t wanted) {
  return has == wanted || (wanted == 3 && (has == 1 || has == 2 || has == 4)) || (wanted == 1 && has == 2);
}

ImageHeader read_header(const std::string& path, std::int64_t item, bool mask) {
  if (files::ending_of(path) == "npy") return npy::read_header(path, item, mask);
  ensure(item == 0, "image ", item, " of '", path, "'");
  return vips::read_header(path);
}

std::int64_t images_in(const std::string& path, bool mask) {
  return files::ending_of(path) == "npy" ? npy::read_header(path, 0, mask).images : 1;
}

std::unique_ptr<ImageDecoder> open_image(const std::string& path, const ImageHeader& header, const ImageLevel& level,
                                         PixelKind kind) {
  if (!kind.label && !can_become(header.format.channels, kind.channels))
    throw Error(concat("image '", path, "' has ", header.format.text(), ", and the others, or the network, ",
                       kind.channels, "; see --channels"));
  auto decoder =
      header.loader == npy::loader ? npy::open(path, header.item, kind) : vips::open(path, header, level, kind);
  if (kind.label || (header.format.channels == kind.channels && header.format.type != PixelType::float32))
    return decoder;
  return std::make_unique<AsWanted>(std::move(decoder), path, header.format, kind.channels);
}

}  // namespace tessera
