#include "tessera/data/resample.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numeric>

namespace tessera {
namespace {

const std::vector<Stretch> stretches{
    {0, 40, 40, 40},       // as it is
    {0, 40, 40, 100},      // larger
    {0, 40, 40, 39},       // a little smaller
    {0, 40, 40, 13},       // much smaller
    {0, 40, 40, 1},        // one pixel
    {3.3, 17.9, 40, 40},   // a window
    {21.25, 39.5, 40, 7},  // a window at the end
    {0, 40.5, 40, 20},     // half a pixel more than there is, as in levels that were rounded down
    {5, 25, 40, 20},       // whole pixels
};

TEST(Taps, WeightsAreExactFractionsThatAddUpToOne) {
  for (const Stretch& s : stretches) {
    const Taps taps(s, {0, s.size});
    for (std::int64_t i = 0; i < s.size; ++i) {
      double sum = 0;
      for (std::int64_t k = 0; k < taps.source(i).size(); ++k) {
        const double weight = taps.weights(i)[k];
        EXPECT_EQ(weight * 16384, std::round(weight * 16384));
        EXPECT_GE(weight, 0);
        sum += weight;
      }
      EXPECT_EQ(sum, 1) << "position " << i << " of " << s.size;
    }
  }
}

TEST(Taps, WeightsAreTheTriangleAroundThePixelsCentre) {
  for (const Stretch& s : stretches) {
    const Taps taps(s, {0, s.size});
    const double support = std::max(1.0, s.scale());
    for (std::int64_t i = 0; i < s.size; ++i) {
      const double centre = s.begin + (static_cast<double>(i) + 0.5) * s.scale();
      std::vector<double> triangle;
      for (std::int64_t k = 0; k < s.source_size; ++k)
        triangle.push_back(std::max(0.0, 1 - std::abs(static_cast<double>(k) + 0.5 - centre) / support));
      const double sum = std::accumulate(triangle.begin(), triangle.end(), 0.0);
      for (std::int64_t k = 0; k < s.source_size; ++k) {
        const double weight = taps.source(i).contains(k) ? taps.weights(i)[k - taps.source(i).begin] : 0;
        EXPECT_NEAR(weight, triangle[static_cast<std::size_t>(k)] / sum, 1.01 / 16384)
            << "position " << i << ", pixel " << k;
      }
    }
  }
}

TEST(Taps, DoNotDependOnThePartThatIsAskedFor) {
  for (const Stretch& s : stretches) {
    const Taps whole(s, {0, s.size});
    const Taps part(s, {s.size / 3, s.size});
    for (std::int64_t i = 0; i < part.count(); ++i) {
      ASSERT_EQ(part.source(i), whole.source(i + s.size / 3));
      for (std::int64_t k = 0; k < part.source(i).size(); ++k)
        EXPECT_EQ(part.weights(i)[k], whole.weights(i + s.size / 3)[k]);
    }
  }
}

TEST(Taps, KnowWhenNothingIsToBeDone) {
  EXPECT_TRUE(Taps({0, 40, 40, 40}, {3, 40}).identity());
  EXPECT_TRUE(Taps({5, 25, 40, 20}, {0, 20}).identity());
  EXPECT_FALSE(Taps({0, 40, 40, 39}, {0, 39}).identity());
  EXPECT_FALSE(Taps({0.5, 20.5, 40, 20}, {0, 20}).identity());
}

/// All rows at once, in float64, by the definition.
std::vector<double> by_definition(const Taps& rows, const Taps& columns, const std::vector<std::uint8_t>& source,
                                  std::int64_t source_width, std::int64_t channels) {
  std::vector<double> out;
  for (std::int64_t y = 0; y < rows.count(); ++y)
    for (std::int64_t x = 0; x < columns.count(); ++x)
      for (std::int64_t c = 0; c < channels; ++c) {
        double sum = 0;
        for (std::int64_t j = rows.source(y).begin; j < rows.source(y).end; ++j)
          for (std::int64_t i = columns.source(x).begin; i < columns.source(x).end; ++i)
            sum += double(rows.weights(y)[j - rows.source(y).begin]) *
                   double(columns.weights(x)[i - columns.source(x).begin]) *
                   source[static_cast<std::size_t>((j * source_width + i) * channels + c)];
        out.push_back(sum);
      }
  return out;
}

template <class Pixel>
std::vector<double> resampled(const Taps& rows, const Taps& columns, const std::vector<std::uint8_t>& source,
                              std::int64_t source_width, std::int64_t channels) {
  const std::vector<Pixel> pixels(source.begin(), source.end());
  Resampler<Pixel> resampler(rows, columns, channels);
  std::vector<double> out;
  std::int64_t expected_row = 0;
  for (std::int64_t y = rows.all().begin; y < rows.all().end; ++y)
    resampler.feed(&pixels[static_cast<std::size_t>((y * source_width + columns.all().begin) * channels)],
                   [&](std::int64_t row, const double* values) {
                     EXPECT_EQ(row, expected_row++);
                     out.insert(out.end(), values, values + columns.count() * channels);
                   });
  return out;
}

TEST(Resampler, GivesExactlyTheWeightedSums) {
  for (const std::int64_t channels : {1, 3, 4}) {
    std::vector<std::uint8_t> source(static_cast<std::size_t>(40 * 40 * channels));
    for (std::size_t i = 0; i < source.size(); ++i) source[i] = static_cast<std::uint8_t>(i * i * 31 + i / 7);
    for (const Stretch& down : stretches)
      for (const Stretch& across : stretches) {
        const Taps rows(down, {down.size / 4, down.size}), columns(across, {0, (across.size + 1) / 2});
        const auto expected = by_definition(rows, columns, source, 40, channels);
        EXPECT_EQ(resampled<std::uint8_t>(rows, columns, source, 40, channels), expected);
        EXPECT_EQ(resampled<double>(rows, columns, source, 40, channels), expected) << "integers are exact here, too";
      }
  }
}

TEST(Nearest, IsThePixelUnderTheCentre) {
  EXPECT_EQ(nearest({0, 40, 40, 40}, 17), 17);
  EXPECT_EQ(nearest({0, 40, 40, 20}, 3), 7);  // centre 7.0: the right one of the two
  EXPECT_EQ(nearest({0, 40, 40, 80}, 5), 2);  // centre 2.75
  EXPECT_EQ(nearest({10, 20, 40, 40}, 39), 19);
  EXPECT_EQ(nearest({0, 41, 40, 41}, 40), 39) << "never outside the source";
}

}  // namespace
}  // namespace tessera
