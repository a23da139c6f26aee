#include "tessera/data/raw_image.h"

#include <ATen/core/Tensor.h>

#include "tessera/base/error.h"

namespace tessera {
namespace {

template <class Real, class Number>
void finish_as(const RawImage& raw, const Number* numbers, const at::Tensor& out) {
  const std::int64_t channels = out.size(0), height = out.size(1), width = out.size(2);
  const ValuesOf<Number, Real> value_of(raw.normalisation, raw.type);
  const std::int64_t stored_row = raw.columns.size() * channels;
  // In the numbers, from one row or column of the image to the next.
  std::int64_t down = raw.transpose ? channels : stored_row, across = raw.transpose ? stored_row : channels;
  if (raw.flip_rows) numbers += (height - 1) * down, down = -down;
  if (raw.flip_columns) numbers += (width - 1) * across, across = -across;
  std::vector<Real> pixel(static_cast<std::size_t>(channels));
  for (std::int64_t y = 0; y < height; ++y)
    for (std::int64_t x = 0; x < width; ++x) {
      const Number* from = numbers + y * down + x * across;
      Real* to = out.data_ptr<Real>() + y * out.stride(1) + x * out.stride(2);
      for (std::size_t c = 0; c < pixel.size(); ++c) pixel[c] = value_of(c, from[c]);
      for (std::size_t c = 0; c < pixel.size(); ++c) {
        double value = pixel[c];
        if (raw.colours) {
          value = raw.colours->offset[c];
          for (std::size_t k = 0; k < pixel.size(); ++k) value += raw.colours->matrix[c][k] * pixel[k];
        }
        to[static_cast<std::int64_t>(c) * out.stride(0)] = static_cast<Real>(value);
      }
    }
}

}  // namespace

Normalisation default_normalisation(std::int64_t channels, bool floats) {
  const auto all = [&](double value) { return std::vector<double>(static_cast<std::size_t>(channels), value); };
  if (floats) return {all(0), all(1)};
  if (channels == 3) return {{0.485, 0.456, 0.406}, {0.229, 0.224, 0.225}};
  return {all(0.5), all(0.25)};
}

void finish(const RawImage& raw, const std::uint8_t* bytes, const at::Tensor& out) {
  const std::int64_t rows = raw.transpose ? out.size(2) : out.size(1),
                     columns = raw.transpose ? out.size(1) : out.size(2);
  ensure(out.size(0) == raw.normalisation.channels() && rows == raw.rows.size() && columns == raw.columns.size(),
         "bytes of ", raw.rows, " x ", raw.columns, " for an image of sizes ", out.sizes());
  with_numbers(raw.type, [&]<class Number>() {
    const auto* numbers = reinterpret_cast<const Number*>(bytes);
    if (out.scalar_type() == at::kFloat)
      finish_as<float>(raw, numbers, out);
    else
      finish_as<double>(raw, numbers, out);
  });
}

}  // namespace tessera
