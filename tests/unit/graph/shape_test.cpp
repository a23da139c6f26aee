// Shape rules against closed formulas and against sliding the window by hand.
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/graph/graph.h"
#include "unit/graph/draw.h"

namespace tessera {
namespace {

struct Line {
  std::int64_t kernel, stride, pad, pad_end, dilation;
};

// How often the window fits when it slides over the padded line.
std::int64_t places(const Line& line, std::int64_t size) {
  std::int64_t count = 0;
  const std::int64_t padded = size + line.pad + line.pad_end;
  for (std::int64_t first = 0; first + (line.kernel - 1) * line.dilation < padded; first += line.stride) ++count;
  return count;
}

TEST(ShapeRule, AConvolutionHasAnOutputWhereverItsWindowFits) {
  Draw draw(11);
  int refused = 0;
  for (int trial = 0; trial < 5000; ++trial) {
    const Line h{draw(1, 5), draw(1, 3), draw(-2, 3), draw(-2, 3), draw(1, 3)};
    const Line w{draw(1, 5), draw(1, 3), draw(-2, 3), draw(-2, 3), draw(1, 3)};
    const Shape in{draw(1, 4), draw(1, 15), draw(1, 15)};
    const Shape expected{draw(1, 9), places(h, in.height), places(w, in.width)};
    Graph g;
    const Value x = g.input(in);
    const ConvOptions options{.out = expected.channels,
                              .kernel = {h.kernel, w.kernel},
                              .stride = {h.stride, w.stride},
                              .pad = {h.pad, w.pad},
                              .pad_end = Pair{h.pad_end, w.pad_end},
                              .dilation = {h.dilation, w.dilation}};
    if (expected.height == 0 || expected.width == 0) {
      ASSERT_THROW(g.conv(x, options, "c"), UsageError);
      ++refused;
    } else {
      ASSERT_EQ(g.shape(g.conv(x, options, "c")), expected) << "of " << in;
    }
  }
  EXPECT_GT(refused, 100) << "the sweep should also see windows that do not fit";
}

TEST(ShapeRule, PoolsKeepChannelsAndFollowTheirWindows) {
  Draw draw(11);
  for (int trial = 0; trial < 2000; ++trial) {
    const std::int64_t kh = draw(1, 5), kw = draw(1, 5);
    const Line h{kh, draw(1, 3), draw(0, kh - 1), draw(0, kh - 1), 1};
    const Line w{kw, draw(1, 3), draw(0, kw - 1), draw(0, kw - 1), 1};
    const Shape in{draw(1, 4), draw(5, 15), draw(5, 15)};
    const Shape expected{in.channels, places(h, in.height), places(w, in.width)};
    Graph g;
    const Value x = g.input(in);
    const PoolOptions options{.kernel = {kh, kw},
                              .stride = Pair{h.stride, w.stride},
                              .pad = {h.pad, w.pad},
                              .pad_end = Pair{h.pad_end, w.pad_end}};
    ASSERT_EQ(g.shape(g.max_pool(x, options)), expected) << "of " << in;
    ASSERT_EQ(g.shape(g.avg_pool(x, options)), expected) << "of " << in;
  }
}

class Shapes8x9 : public ::testing::Test {
 protected:
  Graph g;
  Value x = g.input({6, 8, 9});
};

TEST_F(Shapes8x9, OptionsThatAreNotGivenTakeTheirDefaults) {
  EXPECT_EQ(g.shape(g.conv(x, {.out = 4, .kernel = 3, .pad = 1}, "same")), (Shape{4, 8, 9})) << "pad on both ends";
  EXPECT_EQ(g.shape(g.max_pool(x, {.kernel = 2})), (Shape{6, 4, 4})) << "stride as the kernel";
  EXPECT_EQ(g.shape(g.avg_pool(x, {.kernel = {2, 3}})), (Shape{6, 4, 3}));
  EXPECT_EQ(g.shape(g.avg_pool(x, {.kernel = 3, .stride = 2, .pad = 1})), (Shape{6, 4, 5}));
}

TEST_F(Shapes8x9, AConvolutionToGroupsKeepsItsOwnChannelCount) {
  EXPECT_EQ(g.shape(g.conv(x, {.out = 9, .kernel = 3, .groups = 3}, "c")), (Shape{9, 6, 7}));
}

TEST_F(Shapes8x9, ElementwiseOperationsKeepTheShape) {
  for (Value y : {g.relu(x), g.batch_norm(x, "n"), g.dropout(x, 0.5), g.add(x, x)}) EXPECT_EQ(g.shape(y), g.shape(x));
}

TEST_F(Shapes8x9, AJoinAddsChannels) {
  const Value y = g.conv(x, {.out = 5}, "c");
  EXPECT_EQ(g.shape(g.concat({x, y, x})), (Shape{17, 8, 9}));
}

TEST_F(Shapes8x9, TheHeadEndsInOneLossASample) {
  EXPECT_EQ(g.shape(g.global_avg_pool(x)), (Shape{6, 1, 1}));
  const Value flat = g.flatten(x);
  EXPECT_EQ(g.shape(flat), (Shape{6 * 8 * 9, 1, 1}));
  const Value logits = g.linear(flat, {.out = 10}, "fc");
  EXPECT_EQ(g.shape(logits), (Shape{10, 1, 1}));
  EXPECT_EQ(g.shape(g.cross_entropy(logits)), (Shape{1, 1, 1}));
  EXPECT_EQ(g.logits(), logits);
  EXPECT_EQ(g.label_kind(), LabelKind::image);
}

TEST_F(Shapes8x9, UpsamplingMakesTwiceAsManyOrOneRowOrColumnFewer) {
  EXPECT_EQ(g.shape(g.conv_transpose(x, {.out = 3}, "a")), (Shape{3, 16, 18}));
  EXPECT_EQ(g.shape(g.conv_transpose(x, {.out = 3, .scale = {3, 1}}, "b")), (Shape{3, 24, 9}));
  EXPECT_EQ(g.shape(g.conv_transpose(x, {.out = 3, .size = Pair{15, 18}}, "c")), (Shape{3, 15, 18}));
  EXPECT_EQ(g.shape(g.upsample(x)), (Shape{6, 16, 18}));
  EXPECT_EQ(g.shape(g.upsample(x, {.size = Pair{16, 17}})), (Shape{6, 16, 17}));
  for (const Pair size : {Pair{14, 18}, Pair{17, 18}, Pair{16, 16}, Pair{16, 19}}) {
    EXPECT_THROW(g.conv_transpose(x, {.out = 3, .size = size}, "d"), UsageError) << size.height << 'x' << size.width;
    EXPECT_THROW(g.upsample(x, {.size = size}), UsageError) << size.height << 'x' << size.width;
  }
  EXPECT_THROW(g.conv_transpose(x, {.out = 0}, "e"), UsageError);
  EXPECT_THROW(g.conv_transpose(x, {.out = 1, .scale = 0}, "f"), UsageError);
}

TEST_F(Shapes8x9, PixelsHaveALossEachIfTheirLogitsFillTheImage) {
  const Value half = g.max_pool(x, {.kernel = 2});
  EXPECT_THROW(g.pixel_cross_entropy(half), UsageError);
  EXPECT_THROW(g.pixel_cross_entropy(g.conv(x, {.out = 256}, "too many classes for a byte")), UsageError);
  EXPECT_EQ(g.shape(g.pixel_cross_entropy(x)), (Shape{1, 8, 9}));
  EXPECT_EQ(g.logits(), x);
  EXPECT_EQ(g.label_kind(), LabelKind::pixel);
}

TEST_F(Shapes8x9, AUsersOwnOperationIsAskedForItsShape) {
  struct Transpose final : Operation {
    std::string_view kind() const override { return "transpose"; }
    Shape output_shape(Shapes in) const override { return {in[0].channels, in[0].width, in[0].height}; }
    Cost cost(Shapes, const Box&) const override { return {}; }
    Needs needs() const override { return {}; }
    bool repeats() const override { return true; }
  };
  EXPECT_EQ(g.shape(g.add_node(std::make_shared<Transpose>(), {x})), (Shape{6, 9, 8}));
}

TEST(Shape, CountsAndBoxesAllItsPositions) {
  const Shape s{3, 4, 5, 2};
  EXPECT_EQ(s.positions(), 40);
  EXPECT_EQ(s.elements(), 120);
  EXPECT_EQ(s.box({1, 3}), (Box{{Interval{1, 3}, Interval{0, 2}, Interval{0, 4}, Interval{0, 5}}}));
}

}  // namespace
}  // namespace tessera
