#include "tessera/base/random.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

namespace tessera {
namespace {

using Words = std::array<std::uint32_t, 4>;

// A known answer of the Random123 distribution (tests/kat_vectors, the "philox4x32 10" lines), words in its order.
Words philox_of_words(const Words& counter, const std::array<std::uint32_t, 2>& key) {
  const auto two = [](std::uint32_t low, std::uint32_t high) { return std::uint64_t{high} << 32 | low; };
  return philox(two(key[0], key[1]), two(counter[0], counter[1]), two(counter[2], counter[3]));
}

TEST(Philox, GivesThePublishedAnswerForZeros) {
  EXPECT_EQ(philox_of_words({0, 0, 0, 0}, {0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
}

TEST(Philox, GivesThePublishedAnswerForOnes) {
  const std::uint32_t f = 0xffffffff;
  EXPECT_EQ(philox_of_words({f, f, f, f}, {f, f}), (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
}

TEST(Philox, GivesThePublishedAnswerForTheDigitsOfPi) {
  EXPECT_EQ(philox_of_words({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(StreamOf, IsFnv1aWithItsPublishedValues) {
  EXPECT_EQ(stream_of(""), 0xcbf29ce484222325ull);
  EXPECT_EQ(stream_of("a"), 0xaf63dc4c8601ec8cull);
  EXPECT_EQ(stream_of("foobar"), 0x85944171f73967e8ull);
}

constexpr int draws = 200000;

struct Moments {
  double mean = 0, variance = 0, skewness = 0, kurtosis = 0;
};

Moments moments_of(const std::vector<double>& values) {
  const auto n = static_cast<double>(values.size());
  Moments m;
  for (double x : values) m.mean += x / n;
  double third = 0, fourth = 0;
  for (double x : values) {
    const double d = x - m.mean;
    m.variance += d * d / n;
    third += d * d * d / n;
    fourth += d * d * d * d / n;
  }
  m.skewness = third / std::pow(m.variance, 1.5);
  m.kurtosis = fourth / (m.variance * m.variance);
  return m;
}

double correlation(const std::vector<double>& a, const std::vector<double>& b) {
  const Moments ma = moments_of(a), mb = moments_of(b);
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += (a[i] - ma.mean) * (b[i] - mb.mean);
  return sum / static_cast<double>(a.size()) / std::sqrt(ma.variance * mb.variance);
}

std::vector<double> uniforms(const RandomStream& stream, std::uint64_t from = 0) {
  std::vector<double> out;
  for (std::uint64_t i = 0; i < draws; ++i) out.push_back(stream.uniform(from + i));
  return out;
}

TEST(RandomStream, UniformStaysInItsRangeAndFillsItEvenly) {
  constexpr int bins = 64;
  std::vector<int> count(bins);
  for (double u : uniforms(RandomStream(1, "weights"))) {
    ASSERT_GE(u, 0.0);
    ASSERT_LT(u, 1.0);
    ++count[static_cast<std::size_t>(u * bins)];
  }
  double chi2 = 0;
  const double expected = static_cast<double>(draws) / bins;
  for (int c : count) chi2 += (c - expected) * (c - expected) / expected;
  // 63 degrees of freedom: mean 63, deviation 11.2.
  EXPECT_LT(chi2, 63 + 5 * 11.2);
  EXPECT_GT(chi2, 63 - 4 * 11.2);
}

TEST(RandomStream, UniformHasTheMomentsOfTheUniformDistribution) {
  const Moments m = moments_of(uniforms(RandomStream(1, "weights")));
  EXPECT_NEAR(m.mean, 0.5, 0.003);
  EXPECT_NEAR(m.variance, 1.0 / 12, 0.001);
  EXPECT_NEAR(m.skewness, 0, 0.02);
  EXPECT_NEAR(m.kurtosis, 1.8, 0.02);
}

TEST(RandomStream, NormalHasTheMomentsOfTheNormalDistribution) {
  const RandomStream stream(7, "images");
  std::vector<double> values;
  int beyond_two = 0;
  for (std::uint64_t i = 0; i < draws; ++i) {
    values.push_back(stream.normal(i));
    ASSERT_TRUE(std::isfinite(values.back())) << i;
    beyond_two += std::abs(values.back()) > 2 ? 1 : 0;
  }
  const Moments m = moments_of(values);
  EXPECT_NEAR(m.mean, 0, 0.01);
  EXPECT_NEAR(m.variance, 1, 0.015);
  EXPECT_NEAR(m.skewness, 0, 0.03);
  EXPECT_NEAR(m.kurtosis, 3, 0.06);
  EXPECT_NEAR(static_cast<double>(beyond_two) / draws, 0.0455, 0.002);
}

TEST(RandomStream, NormalIsBoxMullerOnTheTwoHalvesOfOneDraw) {
  const double pi = std::acos(-1.0);
  for (std::uint64_t i = 0; i < 1000; ++i) {
    const Words r = philox(7, i, 9);
    const double u = std::ldexp(r[0], -32) + std::ldexp(r[1], -64), v = std::ldexp(r[2], -32) + std::ldexp(r[3], -64);
    EXPECT_NEAR(RandomStream(7, 9).normal(i), std::sqrt(-2 * std::log(u)) * std::cos(2 * pi * v), 1e-9) << i;
  }
}

TEST(RandomStream, BelowReachesEveryNumberAndNotTheLimit) {
  const RandomStream stream(3, "labels");
  std::vector<int> count(10);
  for (std::uint64_t i = 0; i < draws; ++i) {
    const std::uint64_t n = stream.below(i, 10);
    ASSERT_LT(n, 10u);
    ++count[n];
  }
  for (int c : count) EXPECT_NEAR(static_cast<double>(c) / draws, 0.1, 0.004);
}

TEST(RandomStream, StreamsSeedsAndNeighboursAreUncorrelated) {
  const auto base = uniforms(RandomStream(1, "conv1.weight"));
  const double limit = 5 / std::sqrt(static_cast<double>(draws));
  EXPECT_LT(std::abs(correlation(base, uniforms(RandomStream(1, "conv2.weight")))), limit) << "another name";
  EXPECT_LT(std::abs(correlation(base, uniforms(RandomStream(2, "conv1.weight")))), limit) << "another seed";
  EXPECT_LT(std::abs(correlation(base, uniforms(RandomStream(1, "conv1.weight"), 1))), limit) << "next index";
  EXPECT_LT(std::abs(correlation(uniforms(RandomStream(1, 0)), uniforms(RandomStream(0, 1)))), limit)
      << "seed and stream change places";
}

TEST(RandomStream, NoTwoOfManySeedsStreamsAndIndicesShareTheirBits) {
  std::set<std::uint64_t> seen;
  for (std::uint64_t seed = 0; seed < 20; ++seed)
    for (std::uint64_t stream = 0; stream < 20; ++stream)
      for (std::uint64_t index = 0; index < 20; ++index) seen.insert(RandomStream(seed, stream).bits(index));
  EXPECT_EQ(seen.size(), 20u * 20 * 20);
}

TEST(RandomStream, AValueDependsOnItsAddressAndNotOnWhatWasDrawnBefore) {
  const RandomStream one(5, "x"), other(5, stream_of("x"));
  for (std::uint64_t i = 0; i < 100; ++i) one.normal(i);
  EXPECT_EQ(one.bits(1234567890123ull), other.bits(1234567890123ull));
  EXPECT_EQ(one.normal(3), other.normal(3));
}

}  // namespace
}  // namespace tessera
