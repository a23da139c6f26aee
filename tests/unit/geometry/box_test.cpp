#include "tessera/geometry/box.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "tessera/base/error.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;

TEST(Interval, AnInvertedOneIsEmptyAndHasNoSize) {
  EXPECT_TRUE((Interval{5, 3}.empty()));
  EXPECT_EQ((Interval{5, 3}.size()), 0);
  EXPECT_TRUE((Interval{4, 4}.empty()));
  EXPECT_EQ((Interval{-2, 4}.size()), 6);
}

TEST(Interval, ContainsItsBeginAndNotItsEnd) {
  const Interval i{2, 5};
  EXPECT_TRUE(i.contains(2));
  EXPECT_TRUE(i.contains(4));
  EXPECT_FALSE(i.contains(5));
  EXPECT_FALSE(i.contains(1));
  EXPECT_TRUE(i.contains(Interval{2, 5}));
  EXPECT_FALSE(i.contains(Interval{2, 6}));
  EXPECT_FALSE(i.contains(Interval{1, 5}));
  EXPECT_TRUE(i.contains(Interval{90, 90})) << "nothing lies outside";
}

TEST(Interval, ShiftsBothEnds) { EXPECT_EQ((Interval{2, 5}.shifted(-3)), (Interval{-1, 2})); }

// Every pair of intervals in a small range, point by point.
TEST(Interval, IntersectAndHullHoldWhatSetsSay) {
  std::vector<Interval> all;
  for (std::int64_t begin = -3; begin <= 3; ++begin)
    for (std::int64_t end = begin; end <= 4; ++end) all.push_back({begin, end});
  for (const Interval& a : all)
    for (const Interval& b : all) {
      const Interval common = intersect(a, b), both = hull(a, b);
      std::int64_t least = 100, most = -100;
      for (std::int64_t i = -5; i < 6; ++i) {
        EXPECT_EQ(common.contains(i), a.contains(i) && b.contains(i)) << a << b << i;
        if (a.contains(i) || b.contains(i)) least = std::min(least, i), most = std::max(most, i);
      }
      EXPECT_GE(common.end, common.begin) << a << b;
      if (least <= most) {
        EXPECT_EQ(both, (Interval{least, most + 1})) << a << b;
      } else {
        EXPECT_TRUE(both.empty()) << a << b;
      }
    }
}

TEST(SplitEvenly, TheLargerPiecesComeFirst) {
  EXPECT_THAT(split_evenly({0, 10}, 4), ElementsAre(Interval{0, 3}, Interval{3, 6}, Interval{6, 8}, Interval{8, 10}));
  EXPECT_THAT(split_evenly({5, 11}, 3), ElementsAre(Interval{5, 7}, Interval{7, 9}, Interval{9, 11}));
}

TEST(SplitEvenly, MorePartsThanPositionsLeavesTheLastOnesEmpty) {
  EXPECT_THAT(split_evenly({0, 2}, 4), ElementsAre(Interval{0, 1}, Interval{1, 2}, Interval{2, 2}, Interval{2, 2}));
}

TEST(SplitEvenly, PiecesAreAdjacentCoverTheWholeAndDifferByAtMostOne) {
  for (std::int64_t begin : {-7, 0, 4})
    for (std::int64_t size = 0; size <= 20; ++size)
      for (std::int64_t parts = 1; parts <= 7; ++parts) {
        const auto pieces = split_evenly({begin, begin + size}, parts);
        ASSERT_EQ(pieces.size(), static_cast<std::size_t>(parts));
        std::int64_t at = begin;
        for (const auto& piece : pieces) {
          EXPECT_EQ(piece.begin, at);
          at = piece.end;
          EXPECT_LE(pieces.front().size() - piece.size(), 1);
          EXPECT_GE(pieces.front().size() - piece.size(), 0);
        }
        EXPECT_EQ(at, begin + size);
      }
}

TEST(SplitEvenly, RefusesNoParts) { EXPECT_THROW(split_evenly({0, 3}, 0), Error); }

TEST(Box, VolumeIsTheProductOfItsSides) {
  EXPECT_EQ(image_box({1, 3}, {0, 5}, {-2, 2}).volume(), 2 * 5 * 4);
  EXPECT_EQ(image_box({1, 3}, {5, 5}, {-2, 2}).volume(), 0);
  EXPECT_TRUE(image_box({1, 3}, {5, 5}, {-2, 2}).empty());
  EXPECT_EQ((Box{{Interval{0, 2}, Interval{0, 3}, Interval{0, 5}, Interval{0, 7}}}.volume()), 210);
}

TEST(Box, EachAxisHasItsOwnSide) {
  const Box box{{Interval{0, 1}, Interval{0, 2}, Interval{0, 3}, Interval{0, 4}}};
  EXPECT_EQ(box.batch().size(), 1);
  EXPECT_EQ(box[Axis::depth].size(), 2);
  EXPECT_EQ(box.height().size(), 3);
  EXPECT_EQ(box.width().size(), 4);
}

TEST(Box, IntersectHullAndContainsWorkSideBySide) {
  const Box a = image_box({0, 2}, {0, 6}, {0, 6}), b = image_box({1, 4}, {4, 9}, {-3, 3});
  EXPECT_EQ(intersect(a, b), image_box({1, 2}, {4, 6}, {0, 3}));
  EXPECT_EQ(hull(a, b), image_box({0, 4}, {0, 9}, {-3, 6}));
  EXPECT_TRUE(a.contains(intersect(a, b)));
  EXPECT_TRUE(hull(a, b).contains(a));
  EXPECT_FALSE(a.contains(b));
  EXPECT_FALSE(a.contains(image_box({0, 2}, {0, 6}, {0, 7}))) << "one side too long is enough";
  EXPECT_TRUE(intersect(a, image_box({0, 2}, {6, 9}, {0, 6})).empty()) << "boxes that touch share nothing";
}

TEST(Box, AnEmptyOneAddsNothingToAHullAndLiesInEveryBox) {
  const Box a = image_box({0, 2}, {0, 6}, {0, 6}), nothing = image_box({0, 9}, {9, 9}, {0, 99});
  EXPECT_EQ(hull(a, nothing), a);
  EXPECT_EQ(hull(nothing, a), a);
  EXPECT_TRUE(a.contains(nothing));
}

TEST(Box, PrintsItsSides) {
  std::ostringstream out;
  out << image_box({0, 2}, {-1, 6}, {3, 5}) << ' ' << Grid{2, 3};
  EXPECT_EQ(out.str(), "[0,2)*[0,1)*[-1,6)*[3,5) 2x3");
}

TEST(GridPartition, TilesStandRowByRow) {
  EXPECT_THAT(grid_partition(image_box({0, 4}, {0, 5}, {0, 7}), {2, 3}).boxes,
              ElementsAre(image_box({0, 4}, {0, 3}, {0, 3}), image_box({0, 4}, {0, 3}, {3, 5}),
                          image_box({0, 4}, {0, 3}, {5, 7}), image_box({0, 4}, {3, 5}, {0, 3}),
                          image_box({0, 4}, {3, 5}, {3, 5}), image_box({0, 4}, {3, 5}, {5, 7})));
}

TEST(GridPartition, TilesOfAnyGridCoverEveryPixelOnce) {
  std::mt19937 random(1);
  const auto draw = [&](int low, int high) { return std::uniform_int_distribution<std::int64_t>(low, high)(random); };
  for (int trial = 0; trial < 100; ++trial) {
    const Box whole = image_box({0, 1}, {0, draw(1, 12)}, {0, draw(1, 12)});
    const Grid grid{draw(1, 5), draw(1, 5)};
    const auto tiles = grid_partition(whole, grid).boxes;
    ASSERT_EQ(static_cast<std::int64_t>(tiles.size()), grid.tiles());
    std::int64_t covered = 0;
    for (std::size_t i = 0; i < tiles.size(); ++i) {
      EXPECT_TRUE(whole.contains(tiles[i]));
      covered += tiles[i].volume();
      for (std::size_t j = 0; j < i; ++j) EXPECT_TRUE(intersect(tiles[i], tiles[j]).empty());
    }
    EXPECT_EQ(covered, whole.volume());
  }
}

}  // namespace
}  // namespace tessera
