#include "tessera/data/raw_image.h"

#include <ATen/core/Tensor.h>

#include "tessera/base/error.h"

namespace tessera {
namespace {

template <class Real>
void finish_as(const RawImage& raw, const std::uint8_t* bytes, const at::Tensor& out) {
  const std::int64_t channels = out.size(0), height = out.size(1), width = out.size(2);
  const std::vector<Real> values = values_of_bytes<Real>(raw.normalisation);
  const std::int64_t stored_row = raw.columns.size() * channels;
  // In the bytes, from one row or column of the image to the next.
  std::int64_t down = raw.transpose ? channels : stored_row, across = raw.transpose ? stored_row : channels;
  if (raw.flip_rows) bytes += (height - 1) * down, down = -down;
  if (raw.flip_columns) bytes += (width - 1) * across, across = -across;
  std::vector<Real> pixel(static_cast<std::size_t>(channels));
  for (std::int64_t y = 0; y < height; ++y)
    for (std::int64_t x = 0; x < width; ++x) {
      const std::uint8_t* from = bytes + y * down + x * across;
      Real* to = out.data_ptr<Real>() + y * out.stride(1) + x * out.stride(2);
      for (std::size_t c = 0; c < pixel.size(); ++c) pixel[c] = values[256 * c + from[c]];
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

void finish(const RawImage& raw, const std::uint8_t* bytes, const at::Tensor& out) {
  const std::int64_t rows = raw.transpose ? out.size(2) : out.size(1),
                     columns = raw.transpose ? out.size(1) : out.size(2);
  ensure(out.size(0) == raw.normalisation.channels() && rows == raw.rows.size() && columns == raw.columns.size(),
         "bytes of ", raw.rows, " x ", raw.columns, " for an image of sizes ", out.sizes());
  if (out.scalar_type() == at::kFloat)
    finish_as<float>(raw, bytes, out);
  else
    finish_as<double>(raw, bytes, out);
}

}  // namespace tessera
