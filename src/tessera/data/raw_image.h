// Images as the numbers of their files: bytes are a quarter of the values' size, so that is what travels to a GPU. What
// makes values of them is said here, done by finish() on a CPU and by gpu::image_of_bytes() on a GPU, to the same bits.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/ATen_fwd.h>

#include "tessera/data/pixels.h"
#include "tessera/geometry/box.h"

namespace tessera {

/// What a source did to its pixels: value = (raw − mean) / deviation, for each channel. Raw is in [0, 1] where the
/// file's numbers are integers, and the number itself where they are floats.
struct Normalisation {
  std::vector<double> mean, deviation;

  std::int64_t channels() const { return static_cast<std::int64_t>(mean.size()); }
  /// A number's value is (number − middle) · scale. A difference first: no fused multiply-add can change the bits.
  double middle(std::size_t channel, PixelType type) const { return one_of(type) * mean[channel]; }
  double scale(std::size_t channel, PixelType type) const { return 1 / (one_of(type) * deviation[channel]); }
};

/// What is taken where nobody says otherwise: of three channels of integers ImageNet's, of other integers 0.5 and 0.25,
/// which is about −2 to 2, and floats as they are.
Normalisation default_normalisation(std::int64_t channels, bool floats);

/// value'[i] = offset[i] + Σ matrix[i][k] · value[k] over the channels k, from the first to the last, in float64.
struct ColourMap {
  std::vector<std::vector<double>> matrix;
  std::vector<double> offset;
};

/// A part of an image, made of a box of the numbers of its file.
struct RawImage {
  Interval rows, columns;  ///< the box
  /// The box transposed, then its rows end for end, then its columns.
  bool transpose = false, flip_rows = false, flip_columns = false;
  Normalisation normalisation;
  std::int64_t band_rows = 1;  ///< of the box; as ImageSource::band_rows()
  /// What becomes of the values, once they are rounded to the type of the image.
  std::optional<ColourMap> colours = std::nullopt;
  PixelType type = PixelType::uint8;

  std::int64_t pixel_bytes() const { return normalisation.channels() * bytes_of(type); }
  std::int64_t bytes() const { return rows.size() * columns.size() * pixel_bytes(); }
};

/// `bytes`: the numbers of the box, [rows, columns, channels] without gaps, aligned as such numbers are. `out`: the
/// image, [channels, height, width] of float32 or float64 on the CPU, of any strides.
void finish(const RawImage& raw, const std::uint8_t* bytes, const at::Tensor& out);

/// Values out of a file's numbers, in one rounding of what float64 gives.
template <class Number, class Real>
class ValuesOf {
 public:
  ValuesOf(const Normalisation& normalisation, PixelType type) {
    for (std::size_t c = 0; c < normalisation.mean.size(); ++c) {
      middle_.push_back(normalisation.middle(c, type));
      scale_.push_back(normalisation.scale(c, type));
    }
  }
  Real operator()(std::size_t channel, Number number) const {
    return static_cast<Real>((static_cast<double>(number) - middle_[channel]) * scale_[channel]);
  }

 private:
  std::vector<double> middle_, scale_;
};

/// Of bytes, all values that there can be.
template <class Real>
class ValuesOf<std::uint8_t, Real> {
 public:
  ValuesOf(const Normalisation& normalisation, PixelType type) {
    const ValuesOf<int, Real> value_of(normalisation, type);
    for (std::size_t c = 0; c < normalisation.mean.size(); ++c)
      for (int byte = 0; byte < 256; ++byte) values_.push_back(value_of(c, byte));
  }
  Real operator()(std::size_t channel, std::uint8_t byte) const { return values_[256 * channel + byte]; }

 private:
  std::vector<Real> values_;  // [channel][byte]
};

}  // namespace tessera
