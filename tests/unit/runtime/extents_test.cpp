#include "tessera/runtime/extents.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tessera/base/error.h"

namespace tessera {
namespace {

using testing::ElementsAre;

TEST(Extents, WhatIsFreeServesAnyLength) {
  Extents extents(10);
  extents.add(100);
  const auto a = extents.take(35), b = extents.take(20), c = extents.take(40);
  EXPECT_THAT(a, ElementsAre(Extent{.bytes = 40}));
  EXPECT_THAT(b, ElementsAre(Extent{.at = 40, .bytes = 20}));
  EXPECT_THAT(c, ElementsAre(Extent{.at = 60, .bytes = 40}));
  EXPECT_EQ(extents.missing(1), 10U);
  extents.give_back(a, 0);
  extents.give_back(c, 0);
  EXPECT_EQ(extents.missing(80), 0U);
  EXPECT_EQ(extents.missing(81), 10U);
  // Around b, in two pieces.
  EXPECT_THAT(extents.take(75), testing::UnorderedElementsAre(Extent{.bytes = 40}, Extent{.at = 60, .bytes = 40}));
}

TEST(Extents, TheShortestThatIsLongEnough) {
  Extents extents(1);
  for (const std::size_t bytes : {50U, 20U, 30U}) extents.add(bytes);
  EXPECT_THAT(extents.take(20), ElementsAre(Extent{.slab = 1, .bytes = 20}));
  EXPECT_THAT(extents.take(25), ElementsAre(Extent{.slab = 2, .bytes = 25}));
  EXPECT_THAT(extents.take(52), ElementsAre(Extent{.slab = 0, .bytes = 50}, Extent{.slab = 2, .at = 25, .bytes = 2}));
}

TEST(Extents, NeighboursBecomeOneAndRememberTheLastUse) {
  Extents extents(1);
  extents.add(30);
  extents.add(10);
  const auto other = extents.take(10), a = extents.take(10), b = extents.take(10), c = extents.take(10);
  extents.give_back(a, 7);
  extents.give_back(c, 3);
  extents.give_back(b, 0);
  extents.give_back(other, 9);
  EXPECT_THAT(extents.take(30), ElementsAre(Extent{.bytes = 30, .used = 7}));
  EXPECT_THAT(extents.take(10), ElementsAre(Extent{.slab = 1, .bytes = 10, .used = 9}));
}

TEST(Extents, NoPieceIsTakenTwiceAndSlabsHoldWhatWasTakenAtOnce) {
  Extents extents(8);
  std::vector<std::vector<bool>> taken;  // by slab, by byte
  std::vector<std::vector<Extent>> all;
  std::mt19937 random(1);
  std::size_t slabs = 0, live = 0, most = 0;
  for (std::uint64_t round = 1; round <= 4000; ++round) {
    if (!all.empty() && random() % 2 == 0) {
      std::swap(all[random() % all.size()], all.back());
      for (const Extent& e : all.back()) {
        live -= e.bytes;
        std::fill_n(taken.at(e.slab).begin() + static_cast<std::ptrdiff_t>(e.at), e.bytes, false);
      }
      extents.give_back(all.back(), round);
      all.pop_back();
      continue;
    }
    const std::size_t bytes = 1 + random() % 300;
    if (const std::size_t more = extents.missing(bytes)) {
      extents.add(more);
      taken.emplace_back(more);
      slabs += more;
    }
    all.push_back(extents.take(bytes));
    std::size_t sum = 0;
    for (const Extent& e : all.back()) {
      ASSERT_LE(e.at + e.bytes, taken.at(e.slab).size());
      for (std::size_t at = e.at; at < e.at + e.bytes; ++at) {
        ASSERT_FALSE(taken[e.slab][at]);
        taken[e.slab][at] = true;
      }
      sum += e.bytes;
    }
    ASSERT_EQ(sum, (bytes + 7) / 8 * 8);
    live += sum;
    most = std::max(most, live);
    ASSERT_EQ(slabs, most);
    ASSERT_EQ(extents.free_bytes(), slabs - live);
  }
}

}  // namespace
}  // namespace tessera
