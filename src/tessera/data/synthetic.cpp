#include "tessera/data/synthetic.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numbers>

#include <ATen/core/Tensor.h>

#include "tessera/base/error.h"
#include "tessera/base/random.h"
#include "tessera/base/text.h"

namespace tessera {
namespace {

// Variances: colour 0.9²/3 + wave 0.75²/2 + noise 0.67² = 1.
constexpr double colour_range = 0.9;
constexpr double wave_amplitude = 0.75;
constexpr double noise_deviation = 0.67;
constexpr double lowest_cycles = 2, highest_cycles = 8;
constexpr int shapes_in_image = 5;

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

/// [class][channel], of mean 0 over the classes.
std::vector<double> colour_table(int classes, std::int64_t channels) {
  std::vector<double> colours(static_cast<std::size_t>(classes * channels));
  for (std::int64_t c = 0; c < channels; ++c) {
    // 4c + 2 is never a square, so no step is rational and no class repeats another's colour.
    const double step = std::sqrt(static_cast<double>(4 * c + 2));
    double mean = 0;
    for (int k = 0; k < classes; ++k) mean += weyl(k, step) / classes;
    for (int k = 0; k < classes; ++k)
      colours[static_cast<std::size_t>(k * channels + c)] = rounded_to(2 * colour_range * (weyl(k, step) - mean), 20);
  }
  return colours;
}

}  // namespace

SyntheticImages::SyntheticImages(const SyntheticOptions& options) : options_(options) {
  require(options.classes >= 1, "synthetic images need at least 1 class, not ", options.classes, "; see --num-classes");
  require(options.channels >= 1 && options.height >= 1 && options.width >= 1, "synthetic images of ", options.channels,
          " channels and ", options.height, "x", options.width, " pixels cannot be made; see --image-size");
  require(options.size >= 1, "a synthetic set needs at least 1 image, not ", options.size);
  require(0 <= options.mask_classes && options.mask_classes <= ignored_label, "synthetic masks of ",
          options.mask_classes, " classes cannot be made; there can be ", ignored_label);
  colours_ = colour_table(options.classes, options.channels);
  mask_colours_ = colour_table(options.mask_classes, options.channels);
}

std::int64_t SyntheticImages::label(std::int64_t index) const {
  return static_cast<std::int64_t>(
      RandomStream(options_.seed, "synthetic label")
          .below(static_cast<std::uint64_t>(index), static_cast<std::uint64_t>(options_.classes)));
}

std::optional<std::vector<std::int64_t>> SyntheticImages::label_set(std::int64_t index) const {
  const std::int64_t first = label(index);
  const auto second = static_cast<std::int64_t>(
      RandomStream(options_.seed, "synthetic second label")
          .below(static_cast<std::uint64_t>(index), static_cast<std::uint64_t>(options_.classes)));
  if (second == first) return std::vector{first};
  return std::vector{std::min(first, second), std::max(first, second)};
}

void SyntheticImages::read(ReadKey key, Interval rows, Interval columns, const at::Tensor& out) const {
  check_read(key, rows, columns, out);
  if (out.scalar_type() == at::kFloat)
    read_as<float>(key.index, rows, columns, out);
  else
    read_as<double>(key.index, rows, columns, out);
}

std::vector<SyntheticImages::Shape> SyntheticImages::shapes(std::int64_t index) const {
  std::vector<Shape> shapes;
  if (options_.mask_classes < 2) return shapes;
  const RandomStream stream(options_.seed, "synthetic shapes");
  const auto draw = [&](int shape, int what, std::int64_t count) {
    const auto counter = static_cast<std::uint64_t>(index) * 64 + static_cast<std::uint64_t>(shape * 8 + what);
    return static_cast<std::int64_t>(stream.below(counter, static_cast<std::uint64_t>(count)));
  };
  const std::int64_t side = std::min(options_.height, options_.width);
  for (int i = 0; i < shapes_in_image; ++i)
    shapes.push_back({.disc = draw(i, 0, 2) == 0,
                      .mask_class = static_cast<std::uint8_t>(1 + draw(i, 1, options_.mask_classes - 1)),
                      .y = draw(i, 2, options_.height),
                      .x = draw(i, 3, options_.width),
                      .radius = 1 + side / 10 + draw(i, 4, 1 + side / 6)});
  return shapes;
}

void SyntheticImages::cover(const std::vector<Shape>& shapes, std::int64_t y, Interval columns,
                            std::uint8_t* row) const {
  std::fill_n(row, columns.size(), std::uint8_t{0});
  for (const Shape& shape : shapes) {
    const std::int64_t down = y - shape.y;
    if (std::abs(down) > shape.radius) continue;
    for (std::int64_t x = columns.begin; x < columns.end; ++x) {
      const std::int64_t across = x - shape.x;
      const bool inside =
          shape.disc ? down * down + across * across <= shape.radius * shape.radius : std::abs(across) <= shape.radius;
      if (inside) row[x - columns.begin] = shape.mask_class;
    }
  }
}

void SyntheticImages::read_mask(ReadKey key, Interval rows, Interval columns, const at::Tensor& out) const {
  check_read_mask(key, rows, columns, out);
  const std::vector<Shape> cover_by = shapes(key.index);
  std::vector<std::uint8_t> row(static_cast<std::size_t>(columns.size()));
  const auto fill = [&](auto* labels) {
    for (std::int64_t y = 0; y < rows.size(); ++y) {
      cover(cover_by, rows.begin + y, columns, row.data());
      for (std::int64_t x = 0; x < columns.size(); ++x)
        labels[y * out.stride(0) + x * out.stride(1)] = row[static_cast<std::size_t>(x)];
    }
  };
  if (out.scalar_type() == at::kLong)
    fill(out.data_ptr<std::int64_t>());
  else
    fill(out.data_ptr<std::uint8_t>());
}

template <class Real>
void SyntheticImages::read_as(std::int64_t index, Interval rows, Interval columns, const at::Tensor& out) const {
  const std::int64_t channels = options_.channels;
  const auto number = static_cast<std::uint64_t>(index);
  const auto kind = static_cast<int>(SyntheticImages::label(index));  // whatever a derived class says of it
  const double direction = std::numbers::pi * weyl(kind, std::numbers::phi);
  const double cycles = lowest_cycles + (highest_cycles - lowest_cycles) * weyl(kind, std::numbers::sqrt2);
  const double phase = RandomStream(options_.seed, "synthetic phase").uniform(number);
  const Wave down(rows, options_.height, cycles * std::sin(direction), phase, wave_amplitude);
  const Wave across(columns, options_.width, cycles * std::cos(direction), 0, 1);

  const std::uint64_t image_key = RandomStream(options_.seed, "synthetic noise").bits(number);
  const bool masked = options_.mask_classes > 0;
  const std::vector<double> no_colour(static_cast<std::size_t>(channels));
  const double* colour = masked ? no_colour.data() : &colours_[static_cast<std::size_t>(kind * channels)];

  const std::int64_t c_stride = out.stride(0), y_stride = out.stride(1), x_stride = out.stride(2);
  const bool straight = c_stride == 1 && x_stride == channels && !masked;
  const auto fill = row_filler<Real>(channels);
  const auto fill_exact = row_filler<double>(channels);
  // Not straight into the target: in float64, because the mask's colour is to be added before rounding.
  std::vector<double> row(straight ? 0 : static_cast<std::size_t>(columns.size() * channels));
  std::vector<std::uint8_t> mask(masked ? static_cast<std::size_t>(columns.size()) : 0);
  const std::vector<Shape> cover_by = masked ? shapes(index) : std::vector<Shape>();
  Real* pixels = out.data_ptr<Real>();
  for (std::int64_t y = 0; y < rows.size(); ++y) {
    const auto line = static_cast<std::size_t>(y);
    // The column enters the counter as a position in the whole row, never in the part.
    const std::uint64_t counter = mixed(image_key + golden * static_cast<std::uint64_t>(rows.begin + y)) +
                                  golden * static_cast<std::uint64_t>(columns.begin * channels);
    Real* target = pixels + y * y_stride;
    if (straight) {
      fill(channels, colour, down.sine[line], down.cosine[line], across, counter, target);
      continue;
    }
    fill_exact(channels, colour, down.sine[line], down.cosine[line], across, counter, row.data());
    if (masked) cover(cover_by, rows.begin + y, columns, mask.data());
    for (std::int64_t x = 0; x < columns.size(); ++x)
      for (std::int64_t c = 0; c < channels; ++c) {
        const double over = masked ? mask_colours_[static_cast<std::size_t>(mask[x] * channels + c)] : 0;
        target[c * c_stride + x * x_stride] = static_cast<Real>(row[static_cast<std::size_t>(x * channels + c)] + over);
      }
  }
}

std::string SyntheticImages::describe() const {
  return concat("synthetic: ", counted(options_.size, "image"), " of ", options_.channels, "x", options_.height, "x",
                options_.width, ", ", counted(options_.classes, "class"), ", seed ", options_.seed,
                options_.mask_classes > 0 ? concat(", masks of ", counted(options_.mask_classes, "class")) : "");
}

}  // namespace tessera
