// Region rules: what an output box needs, and who owns which outputs.
#include <gtest/gtest.h>

#include "tessera/graph/graph.h"
#include "unit/graph/draw.h"

namespace tessera {
namespace {

constexpr std::int64_t samples = 3;

// Every output position has one owner.
void expect_partition(const Operation& op, const std::vector<Shape>& inputs, const std::vector<Box>& tiles) {
  const Box whole = op.output_shape(inputs).box({0, samples});
  std::int64_t covered = 0;
  std::vector<Box> owned;
  for (const Box& tile : tiles) {
    owned.push_back(op.owned_output(tile, inputs));
    ASSERT_TRUE(whole.contains(owned.back())) << op.kind() << " tile " << tile << " owns " << owned.back();
    covered += owned.back().volume();
    for (std::size_t i = 0; i + 1 < owned.size(); ++i)
      ASSERT_TRUE(intersect(owned[i], owned.back()).empty()) << op.kind() << owned[i] << owned.back();
  }
  ASSERT_EQ(covered, whole.volume()) << op.kind();
}

void expect_partitions(const Operation& op, const std::vector<Shape>& inputs) {
  Draw draw(5);
  for (int trial = 0; trial < 200 && !::testing::Test::HasFatalFailure(); ++trial)
    expect_partition(op, inputs, draw.partition(inputs[0], samples));
}

const Shape image{4, 11, 14};

std::vector<OperationPtr> elementwise() {
  return {std::make_shared<Activate>(Activation{}),
          std::make_shared<Arithmetic>(Combine::sum),
          std::make_shared<Arithmetic>(Combine::product),
          std::make_shared<Concat>(),
          std::make_shared<Dropout>(0.5),
          std::make_shared<Norm>(BatchNormOptions{}),
          std::make_shared<Norm>(GroupNormOptions{})};
}

const ConvOptions uneven_conv{
    .out = 2, .kernel = {3, 2}, .stride = {2, 3}, .pad = {-1, 2}, .pad_end = Pair{2, 0}, .dilation = {2, 1}};
const PoolOptions uneven_pool{.kernel = {3, 2}, .stride = Pair{2, 1}, .pad = {1, 0}, .pad_end = Pair{2, 1}};

TEST(RegionRule, ElementwiseOperationsNeedAndOwnTheSameBox) {
  const std::vector<Shape> inputs{image, image};
  const Box box = image_box({1, 2}, {-1, 5}, {3, 9});
  for (const auto& op : elementwise()) {
    EXPECT_EQ(op->input_box(box, 0, inputs), box) << op->kind();
    EXPECT_EQ(op->input_box(box, 1, inputs), box) << op->kind();
    EXPECT_EQ(op->owned_output(box, inputs), box) << op->kind();
    expect_partitions(*op, inputs);
  }
}

// The hull of all taps of all outputs of the box, by enumeration.
Interval taps(const Interval& out, std::int64_t kernel, std::int64_t stride, std::int64_t pad, std::int64_t dilation) {
  Interval all;
  for (std::int64_t o = out.begin; o < out.end; ++o)
    for (std::int64_t k = 0; k < kernel; ++k) {
      const std::int64_t tap = o * stride - pad + k * dilation;
      all = hull(all, {tap, tap + 1});
    }
  return all;
}

TEST(RegionRule, AConvolutionNeedsAllItsTapsPaddingIncluded) {
  const Conv conv(uneven_conv);
  const std::vector<Shape> inputs{image};
  const Shape out = conv.output_shape(inputs);
  Draw draw(6);
  for (int trial = 0; trial < 500; ++trial) {
    const Box box = image_box(draw.inside(samples), draw.inside(out.height), draw.inside(out.width));
    const Box need = conv.input_box(box, 0, inputs);
    ASSERT_EQ(need.batch(), box.batch());
    ASSERT_EQ(need[Axis::depth], box[Axis::depth]);
    ASSERT_EQ(need.height(), taps(box.height(), 3, 2, -1, 2)) << box;
    ASSERT_EQ(need.width(), taps(box.width(), 2, 3, 2, 1)) << box;
  }
}

TEST(RegionRule, PoolsNeedAllTheirTapsPaddingIncluded) {
  const MaxPool max(uneven_pool);
  const AvgPool average(uneven_pool);
  const std::vector<Shape> inputs{image};
  const Shape out = max.output_shape(inputs);
  Draw draw(7);
  for (int trial = 0; trial < 500; ++trial) {
    const Box box = image_box(draw.inside(samples), draw.inside(out.height), draw.inside(out.width));
    const Box expected = image_box(box.batch(), taps(box.height(), 3, 2, 1, 1), taps(box.width(), 2, 1, 0, 1));
    ASSERT_EQ(max.input_box(box, 0, inputs), expected) << box;
    ASSERT_EQ(average.input_box(box, 0, inputs), expected) << box;
  }
}

TEST(RegionRule, WindowedOutputsOfAnyGridHaveOneOwnerEach) {
  expect_partitions(Conv(uneven_conv), {image});
  expect_partitions(Conv({.out = 2, .kernel = 7, .stride = 2, .pad = 3}), {image});
  expect_partitions(Conv({.out = 2, .stride = 2, .pad = -1, .pad_end = Pair{1}}), {image});
  expect_partitions(MaxPool(uneven_pool), {image});
  expect_partitions(AvgPool(uneven_pool), {image});
}

TEST(RegionRule, AnOutputRowBelongsToTheOwnerOfItsAnchorRow) {
  const Conv conv({.out = 2, .kernel = 3, .stride = {2, 1}, .pad = 1});
  const std::vector<Shape> inputs{image};  // 11 rows give 6
  EXPECT_EQ(conv.owned_output(image_box({0, 1}, {0, 5}, {0, 6}), inputs), image_box({0, 1}, {0, 3}, {0, 6}));
  EXPECT_EQ(conv.owned_output(image_box({0, 1}, {5, 11}, {6, 14}), inputs), image_box({0, 1}, {3, 6}, {6, 14}));
}

// The hull of the pixels that each output of `out` looks at, one by one.
template <class Looks>
Interval looked_at(const Interval& out, const Looks& looks) {
  Interval all;
  for (std::int64_t o = out.begin; o < out.end; ++o) all = hull(all, looks(o));
  return all;
}

TEST(RegionRule, ATransposedConvolutionNeedsThePixelsOfItsBlocks) {
  const ConvTranspose up({.out = 2, .scale = {2, 3}, .size = Pair{21, 41}});
  const std::vector<Shape> inputs{image};
  const Shape out = up.output_shape(inputs);
  Draw draw(8);
  for (int trial = 0; trial < 500; ++trial) {
    const Box box = image_box(draw.inside(samples), draw.inside(out.height), draw.inside(out.width));
    const auto block = [](std::int64_t size) {
      return [size](std::int64_t o) { return Interval{o / size, o / size + 1}; };
    };
    const Box need = up.input_box(box, 0, inputs);
    ASSERT_EQ(need.batch(), box.batch());
    ASSERT_EQ(need.height(), looked_at(box.height(), block(2))) << box;
    ASSERT_EQ(need.width(), looked_at(box.width(), block(3))) << box;
  }
}

TEST(RegionRule, UpsamplingNeedsTheNearestPixelsOnBothSides) {
  const Upsample up({.size = Pair{21, 28}});
  const std::vector<Shape> inputs{image};
  const Shape out = up.output_shape(inputs);
  Draw draw(9);
  // Output 2i lies a quarter before pixel i, output 2i + 1 a quarter behind it.
  const auto nearest = [](std::int64_t o) {
    const std::int64_t i = o / 2;
    return o % 2 == 0 ? Interval{i - 1, i + 1} : Interval{i, i + 2};
  };
  for (int trial = 0; trial < 500; ++trial) {
    const Box box = image_box(draw.inside(samples), draw.inside(out.height), draw.inside(out.width));
    const Box need = up.input_box(box, 0, inputs);
    ASSERT_EQ(need.batch(), box.batch());
    ASSERT_EQ(need.height(), looked_at(box.height(), nearest)) << box;
    ASSERT_EQ(need.width(), looked_at(box.width(), nearest)) << box;
  }
}

TEST(RegionRule, EnlargedOutputsOfAnyGridHaveOneOwnerEach) {
  expect_partitions(ConvTranspose({.out = 2}), {image});
  expect_partitions(ConvTranspose({.out = 2, .scale = {2, 3}, .size = Pair{21, 41}}), {image});
  expect_partitions(Upsample({}), {image});
  expect_partitions(Upsample({.size = Pair{22, 27}}), {image});
}

TEST(RegionRule, APixelsLossStaysWithItsPixel) {
  const std::vector<Shape> inputs{image};
  const CrossEntropy loss(LabelKind::pixel);
  const Box box = image_box({1, 2}, {3, 5}, {3, 9});
  EXPECT_EQ(loss.input_box(box, 0, inputs), box);
  EXPECT_EQ(loss.owned_output(box, inputs), box);
  expect_partitions(loss, inputs);
}

TEST(RegionRule, AGlobalMeanNeedsTheWholeImageOfItsSamples) {
  const std::vector<Shape> inputs{image};
  EXPECT_EQ(GlobalAvgPool().input_box(image_box({1, 3}, {0, 1}, {0, 1}), 0, inputs), image.box({1, 3}));
}

TEST(RegionRule, AGlobalMeanBelongsToTheOwnerOfTheFirstPixel) {
  const std::vector<Shape> inputs{image};
  const GlobalAvgPool mean;
  EXPECT_EQ(mean.owned_output(image_box({0, 3}, {0, 4}, {0, 7}), inputs), image_box({0, 3}, {0, 1}, {0, 1}));
  EXPECT_TRUE(mean.owned_output(image_box({0, 3}, {4, 11}, {0, 7}), inputs).empty());
  EXPECT_TRUE(mean.owned_output(image_box({0, 3}, {0, 4}, {7, 14}), inputs).empty());
  expect_partitions(mean, inputs);
}

TEST(RegionRule, AFlattenedSampleNeedsItsWholeImage) {
  const std::vector<Shape> inputs{image};
  EXPECT_EQ(Flatten().input_box(image_box({1, 3}, {0, 1}, {0, 1}), 0, inputs), image.box({1, 3}));
}

TEST(RegionRule, AFlattenedSampleHasOneOwnerWhateverTheGridBeforeIt) { expect_partitions(Flatten(), {image}); }

TEST(RegionRule, TheHeadStaysWithItsSamples) {
  const std::vector<Shape> inputs{{32, 1, 1}};
  const Box box = image_box({1, 2}, {0, 1}, {0, 1});
  const Linear linear({.out = 10});
  const CrossEntropy loss;
  for (const Operation* op : {static_cast<const Operation*>(&linear), static_cast<const Operation*>(&loss)}) {
    EXPECT_EQ(op->input_box(box, 0, inputs), box) << op->kind();
    EXPECT_EQ(op->owned_output(box, inputs), box) << op->kind();
    expect_partitions(*op, inputs);
  }
}

}  // namespace
}  // namespace tessera
