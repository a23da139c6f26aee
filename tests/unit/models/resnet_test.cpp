#include "tessera/models/resnet.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tessera/base/error.h"
#include "unit/models/cell_outputs.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const Shape& output_of(const Graph& g, const std::string& name) {
  for (const Node& node : g.nodes())
    if (node.name == name) return node.shape;
  throw Error("no node " + name);
}

std::vector<std::string> cell_names(const Graph& g) {
  std::vector<std::string> out;
  for (const Cell& cell : g.cells()) out.push_back(cell.name);
  return out;
}

std::int64_t count_kind(const Graph& g, std::string_view kind) {
  return std::count_if(g.nodes().begin(), g.nodes().end(),
                       [&](const Node& node) { return node.op && node.op->kind() == kind; });
}

ModelOptions options_at(Shape image, std::int64_t depth, std::int64_t classes = 10) {
  return {.name = "", .image = image, .classes = classes, .depth = depth};
}

TEST(Resnet, CellsAreAStemTheBlocksAndAHead) {
  const Graph g = resnet(18, {.image = {3, 64, 64}});
  EXPECT_THAT(cell_names(g), ElementsAre("stem", "layer1.0", "layer1.1", "layer2.0", "layer2.1", "layer3.0", "layer3.1",
                                         "layer4.0", "layer4.1", "head"));
  EXPECT_EQ(resnet(50, {}).cells().size(), 18u);
  EXPECT_EQ(resnet(152, {}).cells().size(), 52u);
}

TEST(Resnet, DepthCountsTheLayersWithWeightsOffTheShortcuts) {
  for (int depth : {18, 34, 50, 101, 152}) {
    const Graph g = resnet(depth, {});
    std::int64_t layers = 0;
    for (const Node& node : g.nodes())
      if (node.op && (node.op->kind() == "conv" || node.op->kind() == "linear"))
        layers += node.name.find("downsample") == std::string::npos ? 1 : 0;
    EXPECT_EQ(layers, depth);
  }
}

TEST(Resnet, ResolutionHalvesFiveTimesAndOddSizesRoundUp) {
  EXPECT_THAT(
      cell_outputs(resnet(18, {.image = {3, 224, 224}})),
      ElementsAre(Shape{64, 56, 56}, Shape{64, 56, 56}, Shape{64, 56, 56}, Shape{128, 28, 28}, Shape{128, 28, 28},
                  Shape{256, 14, 14}, Shape{256, 14, 14}, Shape{512, 7, 7}, Shape{512, 7, 7}, Shape{1, 1, 1}));
  const Graph odd = resnet(50, {.image = {3, 97, 130}});
  EXPECT_EQ(output_of(odd, "conv1"), (Shape{64, 49, 65}));
  EXPECT_EQ(output_of(odd, "layer1.2.conv3"), (Shape{256, 25, 33}));
  EXPECT_EQ(output_of(odd, "layer2.3.conv3"), (Shape{512, 13, 17}));
  EXPECT_EQ(output_of(odd, "layer3.5.conv3"), (Shape{1024, 7, 9}));
  EXPECT_EQ(output_of(odd, "layer4.2.conv3"), (Shape{2048, 4, 5}));
}

TEST(Resnet, ABottleneckStridesInItsMiddleConvolution) {
  const Graph g = resnet(50, {});
  EXPECT_EQ(output_of(g, "layer2.0.conv1"), (Shape{128, 56, 56}));
  EXPECT_EQ(output_of(g, "layer2.0.conv2"), (Shape{128, 28, 28}));
}

TEST(Resnet, WeightsOfConvolutionsBeginByHe) {
  for (const auto& [name, spec] : resnet(18, {}).parameters())
    if (spec.sizes.size() == 4) {
      EXPECT_EQ(spec.init.kind, Initializer::Kind::normal) << name;
      EXPECT_NEAR(
          spec.init.scale * spec.init.scale * static_cast<double>(spec.sizes[0] * spec.sizes[2] * spec.sizes[3]), 2.0,
          1e-12)
          << name;
    }
}

TEST(ResnetV1, Depth20HasTheParametersThatTheHandCounts) {
  const std::int64_t stem = 3 * 16 * 9 + 2 * 16;
  const auto block = [](std::int64_t in, std::int64_t out) { return 9 * in * out + 9 * out * out + 2 * 2 * out; };
  const auto projection = [](std::int64_t in, std::int64_t out) { return in * out + 2 * out; };
  const std::int64_t expected = stem + 3 * block(16, 16) + block(16, 32) + projection(16, 32) + 2 * block(32, 32) +
                                block(32, 64) + projection(32, 64) + 2 * block(64, 64) + 64 * 10 + 10;
  EXPECT_EQ(expected, 272474);
  EXPECT_EQ(resnet_v1(options_at({3, 32, 32}, 20)).trainable_elements(), expected);
}

TEST(ResnetV1, StaysAtFullResolutionForAThirdOfItsBlocks) {
  const Graph g = resnet_v1(options_at({3, 33, 32}, 20));
  EXPECT_EQ(g.cells().size(), 11u);
  EXPECT_THAT(cell_outputs(g), ElementsAre(Shape{16, 33, 32}, Shape{16, 33, 32}, Shape{16, 33, 32}, Shape{16, 33, 32},
                                           Shape{32, 17, 16}, Shape{32, 17, 16}, Shape{32, 17, 16}, Shape{64, 9, 8},
                                           Shape{64, 9, 8}, Shape{64, 9, 8}, Shape{1, 1, 1}));
  EXPECT_EQ(count_kind(g, "conv"), 19 + 2);
}

TEST(ResnetV1, ItsDefaultDepthIs110) { EXPECT_EQ(resnet_v1({.image = {3, 32, 32}}).cells().size(), 2u + 54); }

TEST(ResnetV2, Depth20HasTheParametersThatTheHandCounts) {
  // Three norms and three convolutions (3x3, 3x3, 1x1); the first block of a group projects its shortcut.
  const auto block = [](std::int64_t in, std::int64_t width, std::int64_t out) {
    return 2 * in + 9 * in * width + 2 * width + 9 * width * width + 2 * width + width * out;
  };
  const std::int64_t stem = 3 * 16 * 9, tail = 2 * 256 + 256 * 10 + 10;
  const std::int64_t first = block(16, 16, 64) + 16 * 64 + block(64, 16, 64);
  const std::int64_t second = block(64, 64, 128) + 64 * 128 + block(128, 64, 128);
  const std::int64_t third = block(128, 128, 256) + 128 * 256 + block(256, 128, 256);
  EXPECT_EQ(stem + first + second + third + tail, 1070170);
  EXPECT_EQ(resnet_v2(options_at({3, 32, 32}, 20)).trainable_elements(), 1070170);
}

TEST(ResnetV2, StaysAtFullResolutionForAThirdOfItsBlocks) {
  const Graph g = resnet_v2(options_at({3, 33, 32}, 20));
  EXPECT_THAT(cell_outputs(g), ElementsAre(Shape{16, 33, 32}, Shape{64, 33, 32}, Shape{64, 33, 32}, Shape{128, 17, 16},
                                           Shape{128, 17, 16}, Shape{256, 9, 8}, Shape{256, 9, 8}, Shape{1, 1, 1}));
  EXPECT_EQ(count_kind(g, "conv"), 19 + 3);
  EXPECT_EQ(count_kind(g, "batch_norm"), 3 * 6 + 1);
  EXPECT_EQ(count_kind(g, "add"), 6);
}

TEST(ResnetV2, TheProjectionTakesTheNormalisedInputAndOtherShortcutsTheRawOne) {
  const Graph g = resnet_v2(options_at({3, 32, 32}, 20));
  const auto input_kind = [&](const Node& node, std::size_t i) { return g.node(node.inputs[i]).op->kind(); };
  int projections = 0, raw = 0;
  for (const Node& node : g.nodes()) {
    if (node.name.find("downsample") != std::string::npos) {
      EXPECT_EQ(input_kind(node, 0), "relu") << node.name;
    }
    if (!node.op || node.op->kind() != "add") continue;
    EXPECT_EQ(input_kind(node, 0), "conv");
    projections += input_kind(node, 1) == "conv" ? 1 : 0;
    raw += input_kind(node, 1) == "add" ? 1 : 0;  // the block before, as it came out
  }
  EXPECT_EQ(projections, 3);
  EXPECT_EQ(raw, 3);
}

TEST(ResnetDepth, ADepthThatDoesNotFitIsRefusedWithTheNearestOnesThatDo) {
  const auto message = [](auto build, std::int64_t depth) -> std::string {
    try {
      build(options_at({3, 32, 32}, depth));
    } catch (const UsageError& error) {
      return error.what();
    }
    return "no UsageError";
  };
  EXPECT_THAT(message(resnet_v1, 21), HasSubstr("--depth 21 does not fit resnet_v1, whose depth is 6n+2; "
                                                "use --depth 20 or --depth 26"));
  EXPECT_THAT(message(resnet_v2, 110 + 5), HasSubstr("9n+2; use --depth 110 or --depth 119"));
  for (std::int64_t depth : {-20, -1, 0, 1, 2, 3}) {
    EXPECT_THAT(message(resnet_v1, depth), HasSubstr("--depth 8")) << depth;
    EXPECT_THAT(message(resnet_v2, depth), HasSubstr("--depth 11")) << depth;
  }
  EXPECT_NO_THROW(resnet_v1(options_at({3, 32, 32}, 8)));
  EXPECT_NO_THROW(resnet_v2(options_at({3, 32, 32}, 11)));
}

}  // namespace
}  // namespace tessera
