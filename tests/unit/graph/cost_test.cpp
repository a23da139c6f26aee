// Costs, counted by hand.
#include <gtest/gtest.h>

#include "tessera/graph/graph.h"

namespace tessera {
namespace {

void expect_cost(const Cost& cost, const Cost& expected) {
  EXPECT_DOUBLE_EQ(cost.forward_flops, expected.forward_flops);
  EXPECT_DOUBLE_EQ(cost.input_gradient_flops, expected.input_gradient_flops);
  EXPECT_DOUBLE_EQ(cost.weight_gradient_flops, expected.weight_gradient_flops);
  EXPECT_DOUBLE_EQ(cost.elements_moved, expected.elements_moved);
}

TEST(Cost, AConvolutionOfTheWholeImage) {
  Graph g;
  const Value y = g.conv(g.input({3, 5, 7}), {.out = 4, .kernel = 3, .pad = 1}, "c");
  // 2 samples of 35 positions, 4 outputs of 27 multiply-adds each.
  const double flops = 2.0 * 2 * 35 * 4 * 27, weights = 4 * 27, input = 2 * 3 * 35, output = 2 * 4 * 35;
  expect_cost(g.cost(g.node(y), 2), {flops, flops, flops, input + weights + output});
}

TEST(Cost, AConvolutionOfATileReadsItsMarginButNoPadding) {
  const Conv conv({.out = 4, .kernel = 3, .pad = 1});
  const std::vector<Shape> inputs{{3, 5, 7}};
  // Output rows 0 and 1 read rows 0 to 2 (row -1 is padding), columns 2 and 3 read columns 1 to 4.
  const double flops = 2.0 * 4 * 4 * 27, input = 3 * 3 * 4;
  expect_cost(conv.cost(inputs, image_box({0, 1}, {0, 2}, {2, 4})), {flops, flops, flops, input + 108 + 16});
}

TEST(Cost, GroupsAndStridesMakeAConvolutionCheaper) {
  Graph g;
  const Value y = g.conv(g.input({6, 8, 8}), {.out = 4, .kernel = {3, 1}, .stride = 2, .groups = 2}, "c");
  ASSERT_EQ(g.shape(y), (Shape{4, 3, 4}));
  // Each output: 3 taps of 3 channels. Rows 0 to 6 and columns 0 to 6 are read.
  const double flops = 2.0 * 12 * 4 * 9, weights = 4 * 9, input = 6 * 7 * 7;
  expect_cost(g.cost(g.node(y), 1), {flops, flops, flops, input + weights + 48});
}

TEST(Cost, ATransposedConvolutionReadsEachPixelOnce) {
  Graph g;
  const Value y = g.conv_transpose(g.input({6, 5, 7}), {.out = 4, .size = Pair{9, 14}}, "up");
  // 2 samples of 126 outputs, 4 channels of 6 multiply-adds each.
  const double flops = 2.0 * 2 * 126 * 4 * 6, weights = 6 * 4 * 4 + 4, input = 2 * 6 * 35, output = 2 * 4 * 126;
  expect_cost(g.cost(g.node(y), 2), {flops, flops, flops, input + weights + output});
}

TEST(Cost, UpsamplingReadsFourNeighboursForEachOutput) {
  Graph g;
  const double outputs = 6 * 10 * 14;
  expect_cost(g.cost(g.node(g.upsample(g.input({6, 5, 7}))), 1), {4 * outputs, 4 * outputs, 0, 6 * 35 + outputs});
}

TEST(Cost, TheLossOfPixelsGrowsWithThem) {
  Graph g;
  const double n = 2 * 3 * 35;
  expect_cost(g.cost(g.node(g.pixel_cross_entropy(g.input({3, 5, 7}))), 2), {4 * n, 2 * n, 0, n});
}

TEST(Cost, ALinearLayerIsAMatrixProduct) {
  Graph g;
  const Value y = g.linear(g.input({20, 1, 1}), {.out = 10}, "fc");
  const double flops = 2.0 * 3 * 20 * 10;
  expect_cost(g.cost(g.node(y), 3), {flops, flops, flops, 3 * 20 + 3 * 10 + 20 * 10 + 10});
}

TEST(Cost, APoolLooksAtAllOfItsWindow) {
  Graph g;
  const Value x = g.input({2, 8, 8});
  const Value max = g.max_pool(x, {.kernel = 2}), average = g.avg_pool(x, {.kernel = 2});
  const double outputs = 2 * 16;
  expect_cost(g.cost(g.node(max), 1), {4 * outputs, 4 * outputs, 0, 128 + outputs});
  expect_cost(g.cost(g.node(average), 1), {4 * outputs, 4 * outputs, 0, 128 + outputs});
}

TEST(Cost, ElementwiseOperationsGrowWithTheirElements) {
  Graph g;
  const Value x = g.input({2, 3, 5});
  const double n = 4 * 30;
  expect_cost(g.cost(g.node(g.relu(x)), 4), {n, n, 0, 2 * n});
  expect_cost(g.cost(g.node(g.add(x, x)), 4), {n, 0, 0, 3 * n});
  expect_cost(g.cost(g.node(g.concat({x, x})), 4), {0, 0, 0, 4 * n});
}

TEST(Cost, TheInputCostsNothing) {
  Graph g;
  g.input({2, 3, 5});
  expect_cost(g.cost(g.nodes()[0], 4), {});
}

TEST(Cost, AddsUp) {
  Cost sum{1, 2, 3, 4};
  sum += {10, 20, 30, 40};
  expect_cost(sum, {11, 22, 33, 44});
  EXPECT_EQ(sum.flops(), 66);
}

}  // namespace
}  // namespace tessera
