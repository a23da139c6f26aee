#include "tessera/data/synthetic.h"

#include <cmath>
#include <numbers>

#include <ATen/core/Tensor.h>

#include "tessera/base/error.h"
#include "tessera/base/random.h"

namespace tessera {
namespace {

// Variances: colour 0.9²/3 + wave 0.75²/2 + noise 0.67² = 1.
constexpr double colour_range = 0.9;
constexpr double wave_amplitude = 0.75;
constexpr double noise_deviation = 0.67;
constexpr double lowest_cycles = 2, highest_cycles = 8;

/// Rounds to a multiple of 2^-bits. Waves are products of two 20-bit fractions, so a pixel is a multiple of 2^-40 below
/// 8: 43 bits, and every sum of its terms is exact in float64.
double rounded_to(double value, int bits) { return std::ldexp(std::nearbyint(std::ldexp(value, bits)), -bits); }

/// The k-th point of a Weyl sequence in [0, 1): classes with near numbers are far apart.
double weyl(int k, double step) {
  const double v = 0.5 + k * step;
  return v - std::floor(v);
}

/// The finaliser of SplitMix64 (Steele et al., 2014).
inline std::uint64_t mixed(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}
constexpr std::uint64_t golden = 0x9e3779b97f4a7c15ull;

/// The sum of four 16-bit uniforms about its mean: near enough to a normal, and cheap.
inline std::int32_t noise_units(std::uint64_t bits) {
  const auto low = static_cast<std::uint32_t>(bits), high = static_cast<std::uint32_t>(bits >> 32);
  return static_cast<std::int32_t>((low & 0xffffu) + (low >> 16) + (high & 0xffffu) + (high >> 16)) - 131070;
}
/// One unit in pixel values; the deviation of noise_units is 65536/sqrt(3).
const double noise_unit = rounded_to(noise_deviation * std::numbers::sqrt3 / 65536, 28);

/// Sines and cosines along one side of the image.
struct Wave {
  std::vector<double> sine, cosine;
  Wave(Interval side, std::int64_t side_size, double cycles, double phase, double amplitude) {
    sine.reserve(static_cast<std::size_t>(side.size()));
    cosine.reserve(static_cast<std::size_t>(side.size()));
    for (std::int64_t i = side.begin; i < side.end; ++i) {
      // Of i in the whole image, never of i in the part.
      const double turns = cycles * static_cast<double>(i) / static_cast<double>(side_size) + phase;
      const double angle = 2 * std::numbers::pi * (turns - std::floor(turns));
      sine.push_back(rounded_to(amplitude * std::sin(angle), 20));
      cosine.push_back(rounded_to(amplitude * std::cos(angle), 20));
    }
  }
};

/// One row of pixels, channels innermost. `channels` is a compile-time constant where Channels is not 0, which unrolls
/// the inner loop.
template <int Channels, class Real>
void fill_row(std::int64_t channels, const double* colour, double row_sine, double row_cosine, const Wave& columns,
              std::uint64_t counter, Real* out) {
  const std::int64_t c_end = Channels ? Channels : channels;
  const auto width = static_cast<std::int64_t>(columns.sine.size());
  const double* sine = columns.sine.data();
  const double* cosine = columns.cosine.data();
  const double unit = noise_unit;
  for (std::int64_t x = 0; x < width; ++x) {
    const double wave = row_sine * cosine[x] + row_cosine * sine[x];
    for (std::int64_t c = 0; c < c_end; ++c) {
      *out++ = static_cast<Real>(colour[c] + wave + unit * noise_units(mixed(counter)));
      counter += golden;
    }
  }
}

template <class Real>
auto row_filler(std::int64_t channels) {
  return channels == 1 ? fill_row<1, Real> : channels == 3 ? fill_row<3, Real> : fill_row<0, Real>;
}

}  // namespace

SyntheticImages::SyntheticImages(const SyntheticOptions& options) : options_(options) {
  require(options.classes >= 1, "synthetic images need at least 1 class, not ", options.classes, "; see --num-classes");
  require(options.channels >= 1 && options.height >= 1 && options.width >= 1, "synthetic images of ", options.channels,
          " channels and ", options.height, "x", options.width, " pixels cannot be made; see --image-size");
  require(options.size >= 1, "a synthetic set needs at least 1 image, not ", options.size);
  colours_.resize(static_cast<std::size_t>(options.classes * options.channels));
  for (std::int64_t c = 0; c < options.channels; ++c) {
    // 4c + 2 is never a square, so no step is rational and no class repeats another's colour.
    const double step = std::sqrt(static_cast<double>(4 * c + 2));
    double mean = 0;
    for (int k = 0; k < options.classes; ++k) mean += weyl(k, step) / options.classes;
    for (int k = 0; k < options.classes; ++k)
      colours_[static_cast<std::size_t>(k * options.channels + c)] =
          rounded_to(2 * colour_range * (weyl(k, step) - mean), 20);
  }
}

std::int64_t SyntheticImages::label(std::int64_t index) const {
  return static_cast<std::int64_t>(
      RandomStream(options_.seed, "synthetic label")
          .below(static_cast<std::uint64_t>(index), static_cast<std::uint64_t>(options_.classes)));
}

void SyntheticImages::read(std::int64_t index, Interval rows, Interval columns, const at::Tensor& out) const {
  check_read(index, rows, columns, out);
  if (out.scalar_type() == at::kFloat)
    read_as<float>(index, rows, columns, out);
  else
    read_as<double>(index, rows, columns, out);
}

template <class Real>
void SyntheticImages::read_as(std::int64_t index, Interval rows, Interval columns, const at::Tensor& out) const {
  const std::int64_t channels = options_.channels;
  const auto number = static_cast<std::uint64_t>(index);
  const auto kind = static_cast<int>(label(index));
  const double direction = std::numbers::pi * weyl(kind, std::numbers::phi);
  const double cycles = lowest_cycles + (highest_cycles - lowest_cycles) * weyl(kind, std::numbers::sqrt2);
  const double phase = RandomStream(options_.seed, "synthetic phase").uniform(number);
  const Wave down(rows, options_.height, cycles * std::sin(direction), phase, wave_amplitude);
  const Wave across(columns, options_.width, cycles * std::cos(direction), 0, 1);

  const std::uint64_t image_key = RandomStream(options_.seed, "synthetic noise").bits(number);
  const double* colour = &colours_[static_cast<std::size_t>(kind * channels)];
  const auto fill = row_filler<Real>(channels);

  const std::int64_t c_stride = out.stride(0), y_stride = out.stride(1), x_stride = out.stride(2);
  const bool channels_last = c_stride == 1 && x_stride == channels;
  std::vector<Real> row(channels_last ? 0 : static_cast<std::size_t>(columns.size() * channels));
  Real* pixels = out.data_ptr<Real>();
  for (std::int64_t y = 0; y < rows.size(); ++y) {
    const auto line = static_cast<std::size_t>(y);
    // The column enters the counter as a position in the whole row, never in the part.
    const std::uint64_t counter = mixed(image_key + golden * static_cast<std::uint64_t>(rows.begin + y)) +
                                  golden * static_cast<std::uint64_t>(columns.begin * channels);
    Real* target = pixels + y * y_stride;
    fill(channels, colour, down.sine[line], down.cosine[line], across, counter, channels_last ? target : row.data());
    if (channels_last) continue;
    for (std::int64_t x = 0; x < columns.size(); ++x)
      for (std::int64_t c = 0; c < channels; ++c)
        target[c * c_stride + x * x_stride] = row[static_cast<std::size_t>(x * channels + c)];
  }
}

std::string SyntheticImages::describe() const {
  return concat("synthetic: ", options_.size, " images of ", options_.channels, "x", options_.height, "x",
                options_.width, ", ", options_.classes, " classes, seed ", options_.seed);
}

}  // namespace tessera
