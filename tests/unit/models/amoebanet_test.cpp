#include "tessera/models/amoebanet.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "unit/models/cell_outputs.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

ModelOptions options_of(std::int64_t layers, std::int64_t filters, Shape image = {3, 64, 64},
                        std::int64_t classes = 1000) {
  return {.name = "amoebanet", .image = image, .classes = classes, .num_layers = layers, .num_filters = filters};
}

// The trainable parameters from the published cells, by arithmetic.
class Count {
 public:
  static std::int64_t model(std::int64_t layers, std::int64_t filters, std::int64_t classes) {
    Count count;
    std::int64_t channels = filters / 4;
    count.total_ = 3 * channels * 9 + 2 * channels;
    count.near_ = count.far_ = channels;
    for (char kind : "RR" + std::string(static_cast<std::size_t>(layers / 3), 'N') + "R" +
                         std::string(static_cast<std::size_t>(layers / 3), 'N') + "R" +
                         std::string(static_cast<std::size_t>(layers / 3), 'N')) {
      channels *= kind == 'R' ? 2 : 1;
      count.cell(channels, kind == 'R');
    }
    return count.total_ + count.near_ * classes + classes;
  }

 private:
  static std::int64_t conv(std::int64_t in, std::int64_t out, std::int64_t taps) { return in * out * taps + 2 * out; }
  static std::int64_t through_a_quarter(std::int64_t c, std::vector<std::int64_t> taps) {
    std::int64_t sum = conv(c, c / 4, 1) + conv(c / 4, c, 1);
    for (auto t : taps) sum += conv(c / 4, c / 4, t);
    return sum;
  }
  void cell(std::int64_t c, bool reduction) {
    total_ += conv(near_, c, 1);
    // The far input is brought to c channels by a 1x1, or by the two halves of one where it is twice as large.
    if (near_reduced_ || far_ != c) total_ += conv(far_, c, 1);
    if (reduction)
      total_ += through_a_quarter(c, {9}) + through_a_quarter(c, {7, 7}) + conv(c, c, 1);
    else
      total_ += 3 * conv(c, c, 1) + 2 * through_a_quarter(c, {7, 7});
    far_ = near_;
    near_ = (reduction ? 3 : 4) * c;
    near_reduced_ = reduction;
  }
  std::int64_t total_ = 0, near_ = 0, far_ = 0;
  bool near_reduced_ = false;
};

TEST(Amoebanet, ParameterCountsAreThoseOfThePublishedCells) {
  for (auto [layers, filters] : {std::pair<std::int64_t, std::int64_t>{3, 8}, {6, 64}, {18, 208}, {18, 416}})
    EXPECT_EQ(amoebanet(options_of(layers, filters)).trainable_elements(), Count::model(layers, filters, 1000))
        << layers << ' ' << filters;
}

// Huang et al., GPipe, table 1: AmoebaNet-D (18, 208) has 82M parameters, (18, 416) 318M.
TEST(Amoebanet, ParameterCountsAreNearThoseOfTheGPipePaper) {
  EXPECT_NEAR(static_cast<double>(amoebanet(options_of(18, 208)).trainable_elements()), 82e6, 1e6);
  EXPECT_NEAR(static_cast<double>(amoebanet(options_of(18, 416)).trainable_elements()), 318e6, 2e6);
}

TEST(Amoebanet, ItsDefaultsAre18LayersAnd416Filters) {
  const Graph g = amoebanet({.name = "amoebanet"});
  EXPECT_EQ(g.cells().size(), 24u);
  EXPECT_EQ(g.trainable_elements(), amoebanet(options_of(18, 416)).trainable_elements());
}

TEST(Amoebanet, CellsAreAStemFourReductionsTheLayersAndAHead) {
  const Graph g = amoebanet(options_of(6, 64));
  std::vector<std::string> names;
  for (const Cell& cell : g.cells()) names.push_back(cell.name);
  EXPECT_THAT(names, ElementsAre("stem", "cell1", "cell2", "cell3", "cell4", "cell5", "cell6", "cell7", "cell8",
                                 "cell9", "cell10", "head"));
}

TEST(Amoebanet, ChannelsDoubleAtReductionsAndCellsJoinThreeOrFourStates) {
  EXPECT_THAT(cell_outputs(amoebanet(options_of(3, 416, {3, 1024, 512}))),
              ElementsAre(Shape{104, 512, 256}, Shape{3 * 208, 256, 128}, Shape{3 * 416, 128, 64},  // stem, two R
                          Shape{4 * 416, 128, 64}, Shape{3 * 832, 64, 32}, Shape{4 * 832, 64, 32},  // N R N
                          Shape{3 * 1664, 32, 16}, Shape{4 * 1664, 32, 16}, Shape{1, 1, 1}));       // R N, head
}

TEST(Amoebanet, OddImagesBuildAndRoundUp) {
  const auto sizes = [](const Shape& image) {
    std::vector<std::pair<std::int64_t, std::int64_t>> out;
    for (const Shape& s : cell_outputs(amoebanet(options_of(3, 16, image))))
      if (out.empty() || out.back() != std::pair{s.height, s.width}) out.emplace_back(s.height, s.width);
    return out;
  };
  using P = std::pair<std::int64_t, std::int64_t>;
  EXPECT_THAT(sizes({3, 97, 97}), ElementsAre(P{49, 49}, P{25, 25}, P{13, 13}, P{7, 7}, P{4, 4}, P{1, 1}));
  EXPECT_THAT(sizes({3, 130, 75}), ElementsAre(P{65, 38}, P{33, 19}, P{17, 10}, P{9, 5}, P{5, 3}, P{1, 1}));
}

TEST(Amoebanet, EveryImageSizeBuilds) {
  for (std::int64_t size = 1; size <= 70; ++size)
    EXPECT_NO_THROW(amoebanet(options_of(3, 8, {3, size, 71 - size}))) << size;
}

TEST(Amoebanet, LayersAndFiltersThatDoNotFitAreRefusedTogetherWithTheNextOnesThatDo) {
  const auto message = [](std::int64_t layers, std::int64_t filters) -> std::string {
    try {
      amoebanet(options_of(layers, filters));
    } catch (const UsageError& error) {
      return error.what();
    }
    return "no UsageError";
  };
  EXPECT_THAT(message(4, 12), AllOf(HasSubstr("--num-layers 4 is not a positive multiple of 3; use --num-layers 6"),
                                    HasSubstr("--num-filters 12 is not a multiple of 8; use --num-filters 16")));
  EXPECT_THAT(message(0, 8), HasSubstr("use --num-layers 3"));
  EXPECT_THAT(message(-3, 8), HasSubstr("use --num-layers 3"));
  EXPECT_THAT(message(3, 0), HasSubstr("use --num-filters 8"));
  EXPECT_EQ(message(3, 8), "no UsageError");
}

}  // namespace
}  // namespace tessera
