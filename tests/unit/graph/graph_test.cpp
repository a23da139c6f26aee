#include "tessera/graph/graph.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tessera/base/error.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

template <class Action>
std::string usage_error(Action action) {
  try {
    action();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no UsageError";
}

TEST(Graph, NodesStandInTheOrderInWhichTheyWereAdded) {
  Graph g;
  const Value x = g.input({3, 8, 8});
  const Value y = g.relu(g.conv(x, {.out = 4}, "c"));
  EXPECT_EQ(x.id, 0);
  EXPECT_EQ(y.id, 2);
  EXPECT_EQ(g.nodes()[1].name, "c");
  EXPECT_EQ(g.node(y).op->kind(), "relu");
  EXPECT_THAT(g.node(y).inputs, ElementsAre(Value{1}));
  EXPECT_EQ(g.nodes()[0].op, nullptr);
}

TEST(Graph, ANodeWithoutANameIsCalledByItsKindAndPlace) {
  Graph g;
  const Value x = g.input({3, 8, 8});
  EXPECT_EQ(g.node(g.relu(x)).name, "relu_1");
  EXPECT_EQ(g.node(g.max_pool(x, {.kernel = 2})).name, "max_pool_2");
}

TEST(Graph, ConsumersAreTheNodesThatReadAValueInOrder) {
  // input -> relu -> conv a -> add, and relu -> conv b -> add
  Graph g;
  const Value r = g.relu(g.input({3, 8, 8}));
  const Value a = g.conv(r, {.out = 3}, "a"), b = g.conv(r, {.out = 3}, "b");
  g.add(a, b);
  EXPECT_THAT(g.consumers(), ElementsAre(ElementsAre(1), ElementsAre(2, 3), ElementsAre(4), ElementsAre(4), IsEmpty()));
}

TEST(Graph, NodesBelongToTheCellThatWasStartedLast) {
  Graph g;
  g.cell("stem");
  Value x = g.relu(g.input({3, 8, 8}));
  g.cell("body");
  x = g.relu(x);
  x = g.relu(x);
  ASSERT_EQ(g.cells().size(), 2u);
  EXPECT_EQ(g.cells()[0].name, "stem");
  EXPECT_EQ(g.cells()[0].first_node, 0);
  EXPECT_EQ(g.cells()[1].name, "body");
  EXPECT_EQ(g.cells()[1].first_node, 2);
  std::vector<int> cells;
  for (const Node& node : g.nodes()) cells.push_back(node.cell);
  EXPECT_THAT(cells, ElementsAre(0, 0, 1, 1));
}

TEST(Graph, AGraphWithoutCellsIsOneCell) {
  Graph g;
  g.relu(g.input({3, 8, 8}));
  ASSERT_EQ(g.cells().size(), 1u);
  EXPECT_EQ(g.nodes()[1].cell, 0);
}

TEST(Graph, ParametersAreNamedAfterTheirNodesInOrder) {
  Graph g;
  Value x = g.batch_norm(g.conv(g.input({6, 1, 1}), {.out = 4, .groups = 2, .bias = true}, "c"), "n");
  g.linear(x, {.out = 5}, "fc");
  std::vector<std::string> names;
  std::vector<std::vector<std::int64_t>> sizes;
  std::vector<bool> trainable;
  for (const auto& [name, spec] : g.parameters()) {
    names.push_back(name);
    sizes.push_back(spec.sizes);
    trainable.push_back(spec.trainable);
  }
  EXPECT_THAT(names, ElementsAre("c.weight", "c.bias", "n.weight", "n.bias", "n.running_mean", "n.running_var",
                                 "n.num_batches_tracked", "fc.weight", "fc.bias"));
  EXPECT_THAT(sizes, ElementsAre(ElementsAre(4, 3, 1, 1), ElementsAre(4), ElementsAre(4), ElementsAre(4),
                                 ElementsAre(4), ElementsAre(4), IsEmpty(), ElementsAre(5, 4), ElementsAre(5)));
  EXPECT_THAT(trainable, ElementsAre(true, true, true, true, false, false, false, true, true));
}

TEST(Graph, RunningStatisticsAreNotCountedAsTrainable) {
  Graph g;
  Value x = g.batch_norm(g.conv(g.input({3, 1, 1}), {.out = 4, .kernel = 1}, "c"), "n");
  g.linear(x, {.out = 5, .bias = false}, "fc");
  EXPECT_EQ(g.trainable_elements(), 3 * 4 + 2 * 4 + 4 * 5);
}

TEST(Initializers, AConvolutionTakesTorchsDefaultOrHesByFanOut) {
  Graph g;
  const Value x = g.input({8, 9, 9});
  g.conv(x, {.out = 6, .kernel = {3, 5}, .pad = {1, 2}, .groups = 2, .bias = true}, "plain");
  g.conv(x, {.out = 6, .kernel = {3, 5}, .fan_out_gain = std::sqrt(2.0)}, "he");
  const auto& plain = g.nodes()[1].parameters;
  for (const auto& spec : plain) {
    EXPECT_EQ(spec.init.kind, Initializer::Kind::uniform);
    EXPECT_DOUBLE_EQ(spec.init.scale, 1 / std::sqrt(4.0 * 15)) << spec.suffix;
  }
  const auto& he = g.nodes()[2].parameters.at(0);
  EXPECT_EQ(he.init.kind, Initializer::Kind::normal);
  EXPECT_DOUBLE_EQ(he.init.scale, std::sqrt(2.0 / (6 * 15)));
}

TEST(Initializers, ALinearLayerIsUniformByFanIn) {
  Graph g;
  g.linear(g.input({16, 1, 1}), {.out = 5}, "fc");
  for (const auto& spec : g.nodes()[1].parameters) {
    EXPECT_EQ(spec.init.kind, Initializer::Kind::uniform);
    EXPECT_DOUBLE_EQ(spec.init.scale, 0.25);
  }
}

TEST(Initializers, BatchNormBeginsAsTheIdentity) {
  Graph g;
  g.batch_norm(g.input({16, 4, 4}), "n");
  std::vector<double> constants;
  for (const auto& spec : g.nodes()[1].parameters) {
    EXPECT_EQ(spec.init.kind, Initializer::Kind::constant);
    constants.push_back(spec.init.scale);
  }
  EXPECT_THAT(constants, ElementsAre(1, 0, 0, 1, 0));  // weight, bias, mean, variance, batches
}

class ShapeErrors : public ::testing::Test {
 protected:
  Graph g;
  Value x = g.input({6, 8, 9});
};

TEST_F(ShapeErrors, AWindowThatDoesNotFitNamesItsNodeAndTheSizes) {
  EXPECT_THAT(usage_error([&] { g.conv(x, {.out = 4, .kernel = 5, .dilation = 2}, "big"); }),
              AllOf(StartsWith("node 'big': "), HasSubstr("9x9 window"), HasSubstr("8x9"), HasSubstr("--image-size")));
  EXPECT_THAT(usage_error([&] { g.max_pool(x, {.kernel = 9}); }), StartsWith("node 'max_pool_1': "));
  EXPECT_THAT(usage_error([&] { g.avg_pool(x, {.kernel = 9}); }), StartsWith("node 'avg_pool_1': "));
}

TEST_F(ShapeErrors, ChannelsThatDoNotFitTheGroupsNameTheNode) {
  EXPECT_THAT(usage_error([&] { g.conv(x, {.out = 4, .groups = 4}, "grouped"); }),
              AllOf(StartsWith("node 'grouped': "), HasSubstr("6 channels in 4 groups")));
}

TEST_F(ShapeErrors, SumsAndJoinsOfDifferentSizesNameTheNodeAndBothShapes) {
  const Value small = g.max_pool(x, {.kernel = 2});
  EXPECT_THAT(usage_error([&] { g.add(x, small); }),
              AllOf(StartsWith("node 'add_2': "), HasSubstr("6x8x9"), HasSubstr("6x4x4")));
  EXPECT_THAT(usage_error([&] {
                g.concat({x, small});
              }),
              AllOf(StartsWith("node 'concat_2': "), HasSubstr("6x8x9"), HasSubstr("6x4x4")));
  const Value wide = g.conv(x, {.out = 7}, "wide");
  EXPECT_THAT(usage_error([&] { g.add(x, wide); }), HasSubstr("7x8x9")) << "channels count in a sum";
}

TEST_F(ShapeErrors, TheHeadNeedsOneLongChannel) {
  EXPECT_THAT(usage_error([&] { g.linear(x, {.out = 4}, "fc"); }),
              AllOf(StartsWith("node 'fc': "), HasSubstr("6x8x9")));
  EXPECT_THAT(usage_error([&] { g.cross_entropy(x); }), AllOf(StartsWith("node 'loss': "), HasSubstr("6x8x9")));
}

TEST_F(ShapeErrors, ARefusedNodeLeavesTheGraphAsItWas) {
  EXPECT_THROW(g.max_pool(x, {.kernel = 9}), UsageError);
  EXPECT_EQ(g.nodes().size(), 1u);
}

TEST_F(ShapeErrors, TwoNodesCannotHaveOneName) {
  g.conv(x, {.out = 4}, "c");
  EXPECT_THAT(usage_error([&] { g.conv(x, {.out = 4}, "c"); }), HasSubstr("'c'"));
  EXPECT_EQ(g.nodes().size(), 2u);
}

TEST_F(ShapeErrors, ANodeNeedsAnInputAndAGraphHasOneInput) {
  EXPECT_THROW(g.concat({}), Error);
  EXPECT_THROW(g.input({3, 4, 4}), Error);
  Graph empty;
  EXPECT_THROW(empty.relu({0}), Error);
  EXPECT_THAT(usage_error([&] { Graph().input({3, 0, 4}); }), AllOf(HasSubstr("3x0x4"), HasSubstr("--image-size")));
}

TEST_F(ShapeErrors, OptionsThatMeanNothingAreRefusedWithTheirValues) {
  EXPECT_THAT(usage_error([&] { g.conv(x, {.out = 0}, "c"); }), HasSubstr("to 0 channels"));
  EXPECT_THAT(usage_error([&] { g.conv(x, {.out = 4, .groups = 3}, "c"); }), HasSubstr("3 groups"));
  EXPECT_THAT(usage_error([&] { g.conv(x, {.out = 4, .kernel = {0, 3}}, "c"); }), HasSubstr("kernel 0x3"));
  EXPECT_THAT(usage_error([&] { g.conv(x, {.out = 4, .stride = {1, 0}}, "c"); }), HasSubstr("stride 1x0"));
  EXPECT_THAT(usage_error([&] { g.conv(x, {.out = 4, .dilation = {-1, 2}}, "c"); }), HasSubstr("dilation -1x2"));
  EXPECT_THAT(usage_error([&] { g.max_pool(x, {.kernel = 2, .pad = 2}); }), HasSubstr("padding 2 and 2"));
  EXPECT_THAT(usage_error([&] { g.avg_pool(x, {.kernel = 2, .pad = -1}); }), HasSubstr("padding -1 and -1"));
  EXPECT_THAT(usage_error([&] {
                g.avg_pool(x, {.kernel = 2, .pad = 0, .pad_end = Pair{0, 2}});
              }),
              HasSubstr("padding 0 and 2"));
  EXPECT_THAT(usage_error([&] { g.max_pool(x, {.kernel = {16, 17}, .pad = 8}); }), HasSubstr("16x17"));
  EXPECT_THAT(usage_error([&] { g.dropout(x, 1.0); }), HasSubstr("probability 1"));
  EXPECT_THAT(usage_error([&] { g.dropout(x, -0.5); }), HasSubstr("-0.5"));
  EXPECT_THAT(usage_error([&] { g.linear(x, {.out = 0}, "fc"); }), HasSubstr("not 0"));
}

}  // namespace
}  // namespace tessera
