#include "tessera/data/image_source.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>

#include "tessera/base/error.h"
#include "tessera/data/resample.h"

namespace tessera {

ImageSize shrunk_to(ImageSize size, std::int64_t most) {
  const double shrink =
      std::max(1.0, static_cast<double>(std::max(size.height, size.width)) / static_cast<double>(most));
  const auto side = [&](std::int64_t pixels) {
    return std::max<std::int64_t>(1, std::lround(static_cast<double>(pixels) / shrink));
  };
  return {side(size.height), side(size.width)};
}
namespace {

Stretch stretch_of(double begin, double share, std::int64_t side) {
  const auto pixels = static_cast<double>(side);
  return {begin * pixels, (begin + share) * pixels, side, side};
}

void write_row(const at::Tensor& out, std::int64_t y, const double* values) {
  const std::int64_t channels = out.size(0), width = out.size(2);
  const std::int64_t c_stride = out.stride(0), x_stride = out.stride(2), start = y * out.stride(1);
  const auto fill = [&](auto* target) {
    for (std::int64_t x = 0; x < width; ++x)
      for (std::int64_t c = 0; c < channels; ++c)
        target[c * c_stride + x * x_stride] = static_cast<std::decay_t<decltype(*target)>>(*values++);
  };
  if (out.scalar_type() == at::kFloat)
    fill(out.data_ptr<float>() + start);
  else
    fill(out.data_ptr<double>() + start);
}

}  // namespace

const std::vector<std::string>& ImageSource::class_names() const {
  static const std::vector<std::string> none;
  return none;
}

Normalisation ImageSource::normalisation() const {
  const auto channels = static_cast<std::size_t>(image_shape()[0]);
  return {std::vector<double>(channels, 0.5), std::vector<double>(channels, 0.25)};
}

void ImageSource::read_mask(ReadKey, Interval, Interval, const at::Tensor&) const {
  throw Error(concat("internal error: there are no masks in ", describe()));
}

void ImageSource::read_bytes(std::int64_t, Interval, Interval, std::uint8_t*) const {
  throw Error(concat("internal error: there are no bytes in ", describe()));
}

void ImageSource::read_window(ReadKey key, const ImageWindow& window, Interval rows, Interval columns,
                              const at::Tensor& out) const {
  if (window.whole()) return read(key, rows, columns, out);
  check_read(key, rows, columns, out);
  if (rows.empty() || columns.empty()) return;
  const auto [channels, height, width] = image_shape();
  const Taps down(stretch_of(window.top, window.height, height), rows);
  const Taps across(stretch_of(window.left, window.width, width), columns);
  // float64 whatever `out` is, so that float32 is the rounded float64.
  const at::Tensor source = at::empty({1, channels, down.all().size(), across.all().size()},
                                      at::TensorOptions().dtype(at::kDouble), at::MemoryFormat::ChannelsLast)
                                .select(0, 0);
  read(key, down.all(), across.all(), source);
  Resampler<double> resampler(down, across, channels);
  for (std::int64_t y = 0; y < source.size(1); ++y)
    resampler.feed(source.data_ptr<double>() + y * across.all().size() * channels,
                   [&](std::int64_t row, const double* values) { write_row(out, row, values); });
}

void ImageSource::read_mask_window(ReadKey key, const ImageWindow& window, Interval rows, Interval columns,
                                   const at::Tensor& out) const {
  if (window.whole()) return read_mask(key, rows, columns, out);
  check_read_mask(key, rows, columns, out);
  if (rows.empty() || columns.empty()) return;
  const auto [channels, height, width] = image_shape();
  const Stretch down = stretch_of(window.top, window.height, height);
  const Stretch across = stretch_of(window.left, window.width, width);
  const Interval source_rows{nearest(down, rows.begin), nearest(down, rows.end - 1) + 1};
  const Interval source_columns{nearest(across, columns.begin), nearest(across, columns.end - 1) + 1};
  const at::Tensor source = at::empty({source_rows.size(), source_columns.size()}, out.options());
  read_mask(key, source_rows, source_columns, source);
  const auto pick = [&]<class Label>(const Label* from, Label* to) {
    for (std::int64_t y = 0; y < rows.size(); ++y) {
      const Label* line = from + (nearest(down, rows.begin + y) - source_rows.begin) * source_columns.size();
      for (std::int64_t x = 0; x < columns.size(); ++x)
        to[y * out.stride(0) + x * out.stride(1)] = line[nearest(across, columns.begin + x) - source_columns.begin];
    }
  };
  if (out.scalar_type() == at::kLong)
    pick(source.data_ptr<std::int64_t>(), out.data_ptr<std::int64_t>());
  else
    pick(source.data_ptr<std::uint8_t>(), out.data_ptr<std::uint8_t>());
}

void ImageSource::write_bytes(const double* values, std::int64_t columns, std::uint8_t* to) const {
  const Normalisation n = normalisation();
  const std::size_t channels = n.mean.size();
  for (std::int64_t x = 0; x < columns; ++x)
    for (std::size_t c = 0; c < 3; ++c) {
      const std::size_t from = std::min(c, channels - 1);  // grey has one
      const double value = values[static_cast<std::size_t>(x) * channels + from] * n.deviation[from] + n.mean[from];
      *to++ = static_cast<std::uint8_t>(std::lround(255 * std::clamp(value, 0.0, 1.0)));
    }
}

at::Tensor ImageSource::thumbnail(std::int64_t index, ImageSize size) const {
  const auto [channels, height, width] = image_shape();
  const auto side = [](std::int64_t pixels, std::int64_t small) {
    return Stretch{0, static_cast<double>(pixels), pixels, small};
  };
  const Taps down(side(height, size.height), {0, size.height}), across(side(width, size.width), {0, size.width});
  at::Tensor out = at::empty({size.height, size.width, 3}, at::TensorOptions().dtype(at::kByte));
  Resampler<double> resampler(down, across, channels);
  constexpr std::int64_t strip = 32;
  for (std::int64_t top = down.all().begin; top < down.all().end; top += strip) {
    const Interval rows{top, std::min(top + strip, down.all().end)};
    const at::Tensor source = at::empty({1, channels, rows.size(), across.all().size()},
                                        at::TensorOptions().dtype(at::kDouble), at::MemoryFormat::ChannelsLast)
                                  .select(0, 0);
    read(index, rows, across.all(), source);
    for (std::int64_t y = 0; y < rows.size(); ++y)
      resampler.feed(source.data_ptr<double>() + y * across.all().size() * channels,
                     [&](std::int64_t row, const double* values) {
                       write_bytes(values, size.width, out.data_ptr<std::uint8_t>() + row * size.width * 3);
                     });
  }
  return out;
}

void ImageSource::check_box(ReadKey key, Interval rows, Interval columns, const at::Tensor& out) const {
  const auto [channels, height, width] = image_shape();
  ensure(0 <= key.index && key.index < size(), "image ", key.index, " of a source of ", size(), " images");
  ensure((Interval{0, height}.contains(rows) && Interval{0, width}.contains(columns)), "rows ", rows, " and columns ",
         columns, " reach outside an image of ", height, "x", width);
  ensure(out.device().is_cpu(), "images are read into CPU tensors, not into one on ", out.device());
}

void ImageSource::check_read(ReadKey key, Interval rows, Interval columns, const at::Tensor& out) const {
  check_box(key, rows, columns, out);
  ensure(out.scalar_type() == at::kFloat || out.scalar_type() == at::kDouble,
         "images are read as float or double, not ", out.scalar_type());
  const std::int64_t channels = image_shape()[0];
  ensure(out.sizes() == at::IntArrayRef({channels, rows.size(), columns.size()}), "a part of ", channels,
         " channels, rows ", rows, " and columns ", columns, " does not fit a tensor of sizes ", out.sizes());
}

void ImageSource::check_read_mask(ReadKey key, Interval rows, Interval columns, const at::Tensor& out) const {
  ensure(mask_classes() >= 1, "there are no masks in ", describe());
  check_box(key, rows, columns, out);
  ensure(out.scalar_type() == at::kLong || out.scalar_type() == at::kByte, "masks are read as int64 or uint8, not ",
         out.scalar_type());
  ensure(out.sizes() == at::IntArrayRef({rows.size(), columns.size()}), "a mask of rows ", rows, " and columns ",
         columns, " does not fit a tensor of sizes ", out.sizes());
}

}  // namespace tessera
