#include "tessera/geometry/window.h"

#include <gtest/gtest.h>

#include <random>

#include "tessera/base/error.h"

namespace tessera {
namespace {

std::string text(const Window& w) {
  return concat("kernel ", w.kernel, " stride ", w.stride, " pad ", w.pad_begin, ' ', w.pad_end, " dilation ",
                w.dilation);
}

class Draw {
 public:
  std::int64_t operator()(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random_);
  }
  /// Any window, crops and uneven padding included.
  Window window() { return {(*this)(1, 7), (*this)(1, 4), (*this)(-4, 5), (*this)(-4, 5), (*this)(1, 3)}; }
  /// Sorted cuts anywhere, so some pieces are empty.
  std::vector<Interval> pieces(std::int64_t size, std::int64_t count) {
    std::vector<std::int64_t> cuts{0, size};
    for (std::int64_t i = 1; i < count; ++i) cuts.push_back((*this)(0, size));
    std::sort(cuts.begin(), cuts.end());
    std::vector<Interval> out;
    for (std::size_t i = 0; i + 1 < cuts.size(); ++i) out.push_back({cuts[i], cuts[i + 1]});
    return out;
  }

 private:
  std::mt19937 random_{20240607};
};

constexpr int trials = 20000;

TEST(Window, ExtentReachesFromTheFirstTapToTheLast) {
  EXPECT_EQ((Window{.kernel = 3}.extent()), 3);
  EXPECT_EQ((Window{.kernel = 3, .dilation = 4}.extent()), 9);
  EXPECT_EQ((Window{.kernel = 1, .dilation = 4}.extent()), 1);
}

// Slides the window over the padded line [-pad_begin, size + pad_end) and counts where it fits.
std::int64_t outputs_by_sliding(const Window& w, std::int64_t size) {
  std::int64_t count = 0;
  for (std::int64_t first = -w.pad_begin;; first += w.stride) {
    const std::int64_t last = first + (w.kernel - 1) * w.dilation;
    if (last >= size + w.pad_end) return count;
    ++count;
  }
}

TEST(Window, OutputSizeCountsThePlacesWhereTheWindowFits) {
  Draw draw;
  int empty = 0;
  for (int trial = 0; trial < trials; ++trial) {
    const Window w = draw.window();
    const std::int64_t size = draw(1, 24);
    ASSERT_EQ(w.output_size(size), outputs_by_sliding(w, size)) << text(w) << " on " << size;
    empty += w.output_size(size) == 0 ? 1 : 0;
  }
  EXPECT_GT(empty, 100) << "the sweep should also see inputs that are too small";
}

TEST(Window, OutputSizesOfFamiliarLayers) {
  EXPECT_EQ((Window{7, 2, 3, 3}.output_size(224)), 112);
  EXPECT_EQ((Window{3, 2, 1, 1}.output_size(97)), 49);
  EXPECT_EQ((Window{2, 2, 0, 1}.output_size(97)), 49) << "the end padding rounds odd sizes up";
  EXPECT_EQ((Window{1, 2, -1, 1}.output_size(97)), 49) << "a crop in front, a zero behind";
  EXPECT_EQ((Window{1, 2, -1, 1}.output_size(1)), 1);
  EXPECT_EQ((Window{5, 1, 0, 0}.output_size(4)), 0);
}

TEST(Window, InputOfIsTheHullOfAllTaps) {
  Draw draw;
  for (int trial = 0; trial < trials; ++trial) {
    const Window w = draw.window();
    const std::int64_t begin = draw(0, 10);
    const Interval out{begin, begin + draw(1, 8)};
    Interval expected;
    for (std::int64_t o = out.begin; o < out.end; ++o)
      for (std::int64_t k = 0; k < w.kernel; ++k) {
        const std::int64_t tap = o * w.stride - w.pad_begin + k * w.dilation;
        expected = hull(expected, {tap, tap + 1});
      }
    ASSERT_EQ(w.input_of(out), expected) << text(w) << " of " << out;
  }
}

TEST(Window, NoOutputsNeedNoInputs) { EXPECT_TRUE((Window{3, 2, 1, 1}.input_of({4, 4}).empty())); }

TEST(Window, AllOutputsReachNoFurtherThanThePadding) {
  Draw draw;
  for (int trial = 0; trial < trials; ++trial) {
    const Window w = draw.window();
    const std::int64_t size = draw(1, 24), outputs = w.output_size(size);
    const Interval padded{-w.pad_begin, size + w.pad_end};
    ASSERT_TRUE(padded.contains(w.input_of({0, outputs}))) << text(w) << " on " << size;
  }
}

TEST(Window, OwnedOutputsOfAnyPartitionAreAPartitionInOrder) {
  Draw draw;
  for (int trial = 0; trial < trials; ++trial) {
    const Window w = draw.window();
    const std::int64_t size = draw(1, 24);
    std::int64_t at = 0;
    for (const Interval& piece : draw.pieces(size, draw(1, 6))) {
      const Interval owned = w.owned_outputs(piece, size);
      if (owned.empty()) continue;
      ASSERT_EQ(owned.begin, at) << text(w) << " on " << size << " piece " << piece;
      at = owned.end;
    }
    ASSERT_EQ(at, w.output_size(size)) << text(w) << " on " << size;
  }
}

TEST(Window, AnOutputBelongsToTheOwnerOfItsAnchor) {
  Draw draw;
  for (int trial = 0; trial < trials; ++trial) {
    const Window w = draw.window();
    const std::int64_t size = draw(1, 24);
    for (const Interval& piece : draw.pieces(size, draw(1, 6)))
      for (std::int64_t o = 0; o < w.output_size(size); ++o)
        ASSERT_EQ(w.owned_outputs(piece, size).contains(o), piece.contains(std::min(o * w.stride, size - 1)))
            << text(w) << " on " << size << " piece " << piece << " output " << o;
  }
}

TEST(Window, AnEmptyPieceOwnsNothingEvenAtTheEnd) {
  const Window w{3, 1, 4, 4};  // 12 outputs of 6 inputs
  EXPECT_TRUE(w.owned_outputs({6, 6}, 6).empty());
  EXPECT_TRUE(w.owned_outputs({0, 0}, 6).empty());
}

TEST(Window, StrideTwoSplitsAnOddImageByItsEvenRows) {
  const Window w{3, 2, 1, 1};
  EXPECT_EQ(w.owned_outputs({0, 5}, 9), (Interval{0, 3}));
  EXPECT_EQ(w.owned_outputs({5, 9}, 9), (Interval{3, 5}));
}

TEST(Window, OutputsWhoseAnchorLiesBehindTheImageGoToTheLastOwner) {
  const Window w{3, 1, 4, 4};  // 12 outputs of 6 inputs
  EXPECT_EQ(w.owned_outputs({0, 3}, 6), (Interval{0, 3}));
  EXPECT_EQ(w.owned_outputs({3, 6}, 6), (Interval{3, 12}));
}

}  // namespace
}  // namespace tessera
