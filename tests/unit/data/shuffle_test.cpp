#include "tessera/data/shuffle.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace tessera {
namespace {

std::vector<std::int64_t> order(std::int64_t size, std::uint64_t seed, std::int64_t epoch) {
  const Shuffle shuffle(size, seed, epoch);
  std::vector<std::int64_t> out(static_cast<std::size_t>(size));
  for (std::int64_t i = 0; i < size; ++i) out[static_cast<std::size_t>(i)] = shuffle(i);
  return out;
}

TEST(Shuffle, IsAPermutationForAnySize) {
  for (const std::int64_t size : {1, 2, 3, 4, 5, 16, 17, 63, 64, 65, 1000, 50000}) {
    auto seen = order(size, 3, 1);
    std::sort(seen.begin(), seen.end());
    std::vector<std::int64_t> all(seen.size());
    std::iota(all.begin(), all.end(), 0);
    EXPECT_EQ(seen, all) << "size " << size;
  }
}

TEST(Shuffle, DiffersBetweenEpochsAndSeeds) {
  const auto first = order(1000, 3, 0);
  EXPECT_EQ(first, order(1000, 3, 0));
  EXPECT_NE(first, order(1000, 3, 1));
  EXPECT_NE(first, order(1000, 4, 0));
}

TEST(Shuffle, SendsAPositionEverywhereWithEqualChance) {
  // 12 places, 6000 epochs: 500 each, deviation 21. Six deviations never happen by chance.
  constexpr int size = 12, epochs = 6000;
  for (std::int64_t position : {0, 5, 11}) {
    std::vector<int> count(size);
    for (int epoch = 0; epoch < epochs; ++epoch) ++count[static_cast<std::size_t>(Shuffle(size, 7, epoch)(position))];
    for (int n : count) EXPECT_NEAR(n, epochs / size, 6 * std::sqrt(epochs / size)) << "position " << position;
  }
}

}  // namespace
}  // namespace tessera
