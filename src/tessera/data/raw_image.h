// Images as the bytes of their files: a quarter of the values' size, so that is what travels to a GPU. What makes
// values of them is said here, done by finish() on a CPU and by gpu::image_of_bytes() on a GPU, to the same bits.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/ATen_fwd.h>

#include "tessera/geometry/box.h"

namespace tessera {

/// What a source did to its pixels: value = (raw − mean) / deviation, for each channel, with raw in [0, 1].
struct Normalisation {
  std::vector<double> mean, deviation;

  std::int64_t channels() const { return static_cast<std::int64_t>(mean.size()); }
  /// A byte's value is (byte − middle) · scale. A difference first: no fused multiply-add can change the bits.
  double middle(std::size_t channel) const { return 255 * mean[channel]; }
  double scale(std::size_t channel) const { return 1 / (255 * deviation[channel]); }
};

/// value'[i] = offset[i] + Σ matrix[i][k] · value[k] over the channels k, from the first to the last, in float64.
struct ColourMap {
  std::vector<std::vector<double>> matrix;
  std::vector<double> offset;
};

/// A part of an image, made of a box of the bytes of its file.
struct RawImage {
  Interval rows, columns;  ///< the box
  /// The box transposed, then its rows end for end, then its columns.
  bool transpose = false, flip_rows = false, flip_columns = false;
  Normalisation normalisation;
  std::int64_t band_rows = 1;  ///< of the box; as ImageSource::band_rows()
  /// What becomes of the values, once they are rounded to the type of the image.
  std::optional<ColourMap> colours = std::nullopt;

  std::int64_t bytes() const { return rows.size() * columns.size() * normalisation.channels(); }
};

/// `bytes`: the box, [rows, columns, channels] without gaps. `out`: the image, [channels, height, width] of float32 or
/// float64 on the CPU, of any strides.
void finish(const RawImage& raw, const std::uint8_t* bytes, const at::Tensor& out);

/// [channel][byte]: all values that there can be.
template <class Real>
std::vector<Real> values_of_bytes(const Normalisation& normalisation) {
  std::vector<Real> values;
  for (std::size_t c = 0; c < normalisation.mean.size(); ++c)
    for (int byte = 0; byte < 256; ++byte)
      values.push_back(static_cast<Real>((byte - normalisation.middle(c)) * normalisation.scale(c)));
  return values;
}

}  // namespace tessera
