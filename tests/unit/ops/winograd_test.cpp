// Winograd's convolution in float32 against a direct one in float64, on parts of larger memory: what it must not read
// is NaN, and what it must not write has to stay so.
#include "tessera/ops/cpu/winograd.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "support/compare.h"
#include "support/kernels.h"
#include "tessera/base/error.h"
#include "unit/ops/conv_case.h"

namespace tessera {
namespace {

namespace F = torch::nn::functional;
using test::ConvCase;
using test::Random;
using test::read;
using test::relative_error;
using test::write;

// A few units of float32's rounding: the products are of transformed numbers, and their sums are as long as the
// channels, or as the patches of a weight.
constexpr double winograd_tolerance = 5e-6;

TEST(Winograd, EqualsADirectConvolutionInsideLargerMemory) {
  Random random(1);
  for (int trial = 0; trial < 80; ++trial) {
    const ConvCase c(random);
    SCOPED_TRACE(c.str());
    winograd_forward(read(c.x), c.origin(), c.weights, c.bias.defined() ? c.bias.data_ptr<float>() : nullptr,
                     write(c.y));
    EXPECT_LT(relative_error(c.y.view, c.expected_y), winograd_tolerance);
    c.y.expect_frame_untouched();
    winograd_input_gradient(read(c.dy), c.origin(), c.weights, write(c.dx));
    EXPECT_LT(relative_error(c.dx.view, c.expected_dx), winograd_tolerance);
    c.dx.expect_frame_untouched();
  }
}

TEST(Winograd, WeightGradientIsAddedWhateverTheThreads) {
  Random random(2);
  const int before = at::get_num_threads();
  for (int trial = 0; trial < 60; ++trial) {
    const ConvCase c(random);
    SCOPED_TRACE(c.str());
    at::set_num_threads(1 + trial % 3);
    const auto start = torch::randn_like(c.weights);
    const auto sum = start.clone();
    winograd_weight_gradient(read(c.x), c.origin(), read(c.dy), sum);
    EXPECT_LT(relative_error(sum, start + c.expected_dw), winograd_tolerance);
  }
  at::set_num_threads(before);
}

TEST(Winograd, WeightGradientsOfLargeImagesKeepTheirDigits) {
  torch::manual_seed(3);
  const int before = at::get_num_threads();
  at::set_num_threads(1);
  // One float32 sum over all 16384 patches would be off by twice the winograd_tolerance.
  const auto last = at::MemoryFormat::ChannelsLast;
  const auto x = torch::randn({1, 4, 512, 512}).contiguous(last), dy = torch::randn({1, 4, 512, 512}).contiguous(last);
  const auto sum = torch::zeros({4, 4, 3, 3});
  winograd_weight_gradient(rows_of<const float>(x), {-1, -1}, rows_of<const float>(dy), sum);
  const auto w = torch::zeros({4, 4, 3, 3}, at::kDouble).requires_grad_(true);
  (torch::conv2d(x.to(at::kDouble), w, {}, 1, 1) * dy).sum().backward();
  EXPECT_LT(relative_error(sum, w.grad()), winograd_tolerance);
  at::set_num_threads(before);
}

TEST(Winograd, SameThreadsGiveTheSameBits) {
  Random random(4);
  const ConvCase c(random);
  std::vector<torch::Tensor> sums;
  for (int run = 0; run < 3; ++run) {
    sums.push_back(torch::zeros_like(c.weights));
    winograd_weight_gradient(read(c.x), c.origin(), read(c.dy), sums.back());
  }
  EXPECT_TRUE(torch::equal(sums[0], sums[1]) && torch::equal(sums[1], sums[2]));
}

TEST(Winograd, IsNotTakenWhereItWouldWaste) {
  EXPECT_FALSE(winograd_pays(3, 64, 2, 256, 256)) << "too few channels for a vector";
  EXPECT_FALSE(winograd_pays(64, 64, 2, 1, 256)) << "patches four rows high for one row";
  EXPECT_FALSE(winograd_pays(512, 512, 1, 8, 12)) << "six patches do not pay for the transform of the weights";
}

// The convolution's kernel, which takes Winograd's way for these sizes: tiles of float32 beside the whole in float64.
TEST(Winograd, TilesOfAConvolutionMakeTheWhole) {
  Random random(5);
  for (int trial = 0; trial < 12; ++trial) {
    Graph graph;
    const auto channels = random.pick(16, 40), height = random.pick(24, 48), width = random.pick(24, 48);
    const ConvOptions options{.out = random.pick(16, 40),
                              .kernel = 3,
                              .pad = random.pick(0, 2),
                              .pad_end = Pair{random.pick(0, 2)},
                              .bias = random.pick(0, 1) == 1};
    graph.conv(graph.input({channels, height, width}), options, "conv");
    const Node& node = graph.nodes().back();
    NodeParameters parameters;
    std::vector<torch::Tensor> weights;
    for (const auto& spec : node.parameters) {
      parameters.values.push_back(torch::randn(spec.sizes));
      parameters.gradients.push_back(torch::zeros(spec.sizes));
      weights.push_back(parameters.values.back().to(at::kDouble).requires_grad_(true));
    }
    const test::KernelOf kernel(graph, at::kFloat, [&](const Node&) { return parameters; });
    const auto shapes = graph.input_shapes(node);
    const Box whole = shapes[0].box({0, 2});
    Slab x = empty_slab(whole, channels, at::kFloat);
    x.data.copy_(torch::randn(x.data.sizes()));
    Slab dy = empty_slab(node.shape.box({0, 2}), options.out, at::kFloat);
    dy.data.copy_(torch::randn(dy.data.sizes()));

    const auto leaf = x.data.to(at::kDouble).detach().requires_grad_(true);
    const auto& w = dynamic_cast<const Conv&>(*node.op).windows;
    const auto expected = torch::conv2d(
        F::pad(leaf, F::PadFuncOptions({w.width.pad_begin, w.width.pad_end, w.height.pad_begin, w.height.pad_end})),
        weights[0], options.bias ? weights[1] : torch::Tensor());
    (expected * dy.data).sum().backward();

    auto y = torch::full_like(dy.data, std::nan("")), dx = torch::zeros_like(x.data);
    const PassInfo pass{};
    const std::int64_t cut = random.pick(12, node.shape.height - 8);
    for (const Interval& rows : {Interval{0, cut}, Interval{cut, node.shape.height}}) {
      const Box tile = image_box({0, 2}, rows, {0, node.shape.width});
      const Box frame = node.op->input_box(tile, 0, shapes), inside = intersect(frame, whole);
      std::vector<Slab> seen{narrowed(x, inside)};
      if (trial % 2 == 1) {  // as a tile of a plan: the slab holds the padding, too
        seen = {empty_slab(frame, channels, at::kFloat)};
        seen[0].data.zero_();
        narrowed(seen[0], inside).data.copy_(narrowed(x, inside).data);
      }
      Saved saved;
      const Slab out = kernel->forward({.inputs = seen, .out = tile, .pass = pass, .saved = saved});
      y.narrow(2, rows.begin, rows.size()).copy_(out.data);
      BackwardArgs args{.inputs = seen,
                        .output = out,
                        .gradients = {narrowed(dy, tile)},
                        .wanted = {true},
                        .addends = {},
                        .pass = pass,
                        .saved = saved};
      kernel->weight_gradients(args);
      const Slab part = kernel->input_gradients(args)[0];
      // Another way, where Winograd's does not pay on this machine, may give padding a gradient, too.
      if (winograd_pays(channels, node.shape.channels, 2, rows.size(), node.shape.width)) {
        ASSERT_TRUE(whole.contains(part.box)) << "the gradient of padding";
      }
      const Box kept = intersect(part.box, whole);
      dx.narrow(2, kept.height().begin, kept.height().size())
          .narrow(3, kept.width().begin, kept.width().size())
          .add_(narrowed(part, kept).data);
    }
    EXPECT_LT(relative_error(y, expected), winograd_tolerance);
    EXPECT_LT(relative_error(dx, leaf.grad()), winograd_tolerance);
    for (std::size_t i = 0; i < weights.size(); ++i)
      EXPECT_LT(relative_error(parameters.gradients[i], weights[i].grad()), winograd_tolerance) << "parameter " << i;
  }
}

}  // namespace
}  // namespace tessera
