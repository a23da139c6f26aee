// Images made of bytes, or of other numbers, without files.
#pragma once

#include <ATen/core/Tensor.h>

#include <mutex>
#include <set>

#include "tessera/data/image_source.h"

namespace tessera::test {

/// Masks, too. One image is not made of bytes like the others, as one that has another size than is trained on.
class ByteImages : public ImageSource {
 public:
  ByteImages(std::int64_t size, std::int64_t height, std::int64_t width, std::int64_t odd = -1, PixelFormat format = {})
      : size_(size), height_(height), width_(width), odd_(odd), format_(format) {}
  std::int64_t size() const override { return size_; }
  int classes() const override { return 10; }
  int mask_classes() const override { return 5; }
  std::array<std::int64_t, 3> image_shape() const override { return {format_.channels, height_, width_}; }
  std::int64_t label(std::int64_t index) const override { return index % 10; }
  Normalisation normalisation() const override {
    Normalisation out;
    for (std::int64_t c = 0; c < format_.channels; ++c) {
      out.mean.push_back(std::array{0.4, 0.5, 0.3}[static_cast<std::size_t>(c % 3)]);
      out.deviation.push_back(std::array{0.2, 0.3, 0.25}[static_cast<std::size_t>(c % 3)]);
    }
    return out;
  }

  void read(ReadKey key, Interval rows, Interval columns, const at::Tensor& out) const override {
    check_read(key, rows, columns, out);
    const RawImage raw{.rows = rows, .columns = columns, .normalisation = normalisation(), .type = format_.type};
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(raw.bytes()));
    fill(key.index, rows, columns, bytes.data());
    finish(raw, bytes.data(), out);
  }
  void read_mask(ReadKey key, Interval rows, Interval columns, const at::Tensor& out) const override {
    for (std::int64_t y = 0; y < rows.size(); ++y)
      for (std::int64_t x = 0; x < columns.size(); ++x)
        out.data_ptr<std::uint8_t>()[y * out.stride(0) + x * out.stride(1)] =
            byte(key.index, rows.begin + y, columns.begin + x, 0) % 5;
  }
  std::optional<RawImage> raw(ReadKey key, Interval rows, Interval columns) const override {
    if (key.index == odd_) return std::nullopt;
    return RawImage{.rows = rows,
                    .columns = columns,
                    .normalisation = normalisation(),
                    .band_rows = band_rows(key),
                    .type = format_.type};
  }
  void read_bytes(std::int64_t index, Interval rows, Interval columns, std::uint8_t* to) const override {
    fill(index, rows, columns, to);
    const std::lock_guard lock(mutex_);
    bands_.insert(rows.begin);
  }
  std::int64_t band_rows(ReadKey key) const override { return key.index % 3 == 2 ? 0 : together; }
  std::string describe() const override { return "bytes"; }

  /// Where reads of bytes began.
  std::set<std::int64_t> bands() const {
    const std::lock_guard lock(mutex_);
    return bands_;
  }
  std::int64_t together = 1;

 private:
  static std::uint8_t byte(std::int64_t index, std::int64_t y, std::int64_t x, std::int64_t c) {
    return static_cast<std::uint8_t>((index * 31 + y * 7 + x * 13 + c * 57 + y * x) % 256);
  }
  void fill(std::int64_t index, Interval rows, Interval columns, std::uint8_t* to) const {
    with_numbers(format_.type, [&]<class Number>() {
      auto* numbers = reinterpret_cast<Number*>(to);
      // The lower bits of wide numbers, and the fractions of floats, are filled, too.
      const auto more = static_cast<Number>(std::is_same_v<Number, std::uint8_t> ? 1 : 1.0 / 7 + 251);
      for (std::int64_t y = rows.begin; y < rows.end; ++y)
        for (std::int64_t x = columns.begin; x < columns.end; ++x)
          for (std::int64_t c = 0; c < format_.channels; ++c)
            *numbers++ = static_cast<Number>(byte(index, y, x, c) * more);
    });
  }

  const std::int64_t size_, height_, width_, odd_;
  const PixelFormat format_;
  mutable std::mutex mutex_;
  mutable std::set<std::int64_t> bands_;
};

}  // namespace tessera::test
