// Fused batch norm, add and ReLU against the separate operations of torch's autograd.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "support/compare.h"
#include "support/device.h"
#include "tessera/base/error.h"
#include "tessera/ops/pointwise.h"
#include "tessera/ops/pointwise_loops.h"

namespace tessera {
namespace {

using test::relative_error;
constexpr double tolerance = 1e-12;

// What rounding to a type leaves of the digits.
double tolerance_of(at::ScalarType dtype) {
  return dtype == at::kDouble ? tolerance : dtype == at::kFloat ? 1e-5 : 2e-2;
}

Slab random_slab(const Shape& shape, std::int64_t samples, at::ScalarType dtype = at::kDouble) {
  Slab slab = empty_slab(shape.box({0, samples}), shape.channels, test::doubles().dtype(dtype));
  slab.data.copy_(torch::randn({samples, shape.channels, shape.height, shape.width}, at::kDouble) * 2 + 0.5);
  return slab;
}

// A norm with its own parameters, and autograd's copy of them.
struct Norm {
  explicit Norm(std::int64_t channels, at::ScalarType dtype = at::kDouble) {
    const auto options = test::doubles().dtype(wide_dtype(dtype));
    mine.values = {torch::randn({channels}, options), torch::randn({channels}, options),
                   torch::randn({channels}, options), torch::rand({channels}, options),
                   torch::zeros({}, options.dtype(at::kLong))};
    for (int i = 0; i < 4; ++i) mine.gradients.push_back(torch::zeros({channels}, options));
    mine.gradients.push_back(torch::zeros({}, options));
    for (const auto& v : mine.values) theirs.push_back(v.to(at::kDouble, false, /*copy=*/true));
    theirs[0].requires_grad_(true);
    theirs[1].requires_grad_(true);
  }
  torch::Tensor apply(const torch::Tensor& x) const {
    return torch::batch_norm(x, theirs[0], theirs[1], theirs[2], theirs[3], true, op.options.momentum,
                             op.options.epsilon, false);
  }
  BatchNorm op{{.epsilon = 1e-5, .momentum = 0.3}};
  NodeParameters mine;
  std::vector<torch::Tensor> theirs;
};

struct Case {
  std::vector<bool> normed;  // one a term
  bool relu = false;
  bool mask_from_output = false;
  int gradient_terms = 1;
  at::ScalarType dtype = at::kDouble;
};

const bool on_gpu = test::device() != at::kCPU;

void check(const Case& c, const Shape& shape, std::int64_t samples) {
  SCOPED_TRACE(tessera::concat(c.normed.size(), " terms, first ", c.normed[0] ? "normed" : "plain", ", last ",
                               c.normed.back() ? "normed" : "plain", c.relu ? ", relu" : "",
                               c.mask_from_output ? " by output" : "", ", ", c.gradient_terms, " gradients, ", shape,
                               " x ", samples, ' ', c.dtype));
  const double allowed = tolerance_of(c.dtype);
  std::vector<Norm> norms;
  for (std::size_t t = 0; t < c.normed.size(); ++t) norms.emplace_back(shape.channels, c.dtype);
  PointwiseOptions options{.terms = {},
                           .relu = c.relu,
                           .mask_from_output = c.mask_from_output,
                           .channels = shape.channels,
                           .on_gpu = on_gpu};
  std::vector<Slab> inputs;
  std::vector<torch::Tensor> leaves;
  torch::Tensor expected;
  for (std::size_t t = 0; t < c.normed.size(); ++t) {
    options.terms.push_back(c.normed[t] ? PointwiseTerm{&norms[t].op, norms[t].mine, "norm"} : PointwiseTerm{});
    inputs.push_back(random_slab(shape, samples, c.dtype));
    leaves.push_back(inputs[t].data.to(at::kDouble, false, true).contiguous().requires_grad_(true));
    const auto term = c.normed[t] ? norms[t].apply(leaves[t]) : leaves[t];
    expected = t == 0 ? term : expected + term;
  }
  if (c.relu) expected = torch::relu(expected);

  const auto kernel = make_pointwise_kernel(options);
  PassInfo pass{};
  pass.options = inputs[0].data.options();
  Saved saved;
  const Slab out = kernel->forward({inputs, inputs[0].box, inputs[0].box, pass, saved});
  EXPECT_LT(relative_error(out.data, expected), allowed);
  EXPECT_TRUE(torch::equal(kernel->recompute({inputs, inputs[0].box, inputs[0].box, pass, saved}).data, out.data));

  std::vector<Slab> gradients;
  torch::Tensor upstream = torch::zeros_like(expected);
  for (int g = 0; g < c.gradient_terms; ++g) {
    gradients.push_back(random_slab(shape, samples, c.dtype));
    upstream = upstream + gradients.back().data;
  }
  expected.backward(upstream);
  BackwardArgs args{inputs, out,  std::move(gradients), std::vector<bool>(inputs.size(), true), {}, out.box,
                    pass,   saved};
  const auto dx = kernel->input_gradients(args);
  for (std::size_t t = 0; t < inputs.size(); ++t) {
    EXPECT_LT(relative_error(dx[t].data, leaves[t].grad()), allowed) << "term " << t;
    if (!c.normed[t]) continue;
    EXPECT_LT(relative_error(norms[t].mine.gradients[0], norms[t].theirs[0].grad()), allowed);
    EXPECT_LT(relative_error(norms[t].mine.gradients[1], norms[t].theirs[1].grad()), allowed);
    // What the only micro of a step adds to statistics that decay once.
    const double decay = 1 - norms[t].op.options.momentum;
    const auto after = [&](std::size_t i) { return norms[t].mine.values[i] * decay + norms[t].mine.gradients[i]; };
    EXPECT_LT(relative_error(after(2), norms[t].theirs[2]), allowed) << "running mean";
    EXPECT_LT(relative_error(after(3), norms[t].theirs[3]), allowed) << "running variance";
    EXPECT_EQ(norms[t].mine.gradients[4].item<double>(), 1);
  }
}

TEST(Pointwise, EveryFusionEqualsAutograd) {
  torch::manual_seed(1);
  const std::vector<Shape> shapes{{1, 9, 7}, {3, 17, 13}, {16, 8, 8}, {33, 5, 31}, {1030, 3, 2}};
  for (const auto& shape : shapes)
    for (int gradients : {1, 2}) {
      for (const bool relu : {false, true})
        for (const bool output : {false, true}) {
          if (!relu && output) continue;
          check({{true}, relu, output, gradients}, shape, 2);
          check({{false}, relu, output, gradients}, shape, 2);
        }
      for (const bool relu : {false, true})
        for (const bool first : {false, true})
          for (const bool second : {false, true}) check({{first, second}, relu, relu, gradients}, shape, 3);
    }
}

// Several widths of memory access, and slabs long enough for every loop of the GPU's kernels.
TEST(Pointwise, EveryTypeEqualsAutogradOnTheGpu) {
  if (!on_gpu) GTEST_SKIP() << "TESSERA_TEST_DEVICE is not cuda";
  torch::manual_seed(7);
  for (const auto dtype : {at::kDouble, at::kFloat, at::kBFloat16})
    for (const Shape& shape : {Shape{3, 31, 29}, Shape{16, 127, 301}, Shape{64, 65, 33}, Shape{2056, 9, 5}})
      for (int gradients : {1, 2}) {
        check({{true}, true, false, gradients, dtype}, shape, 2);
        check({{true, false}, true, true, gradients, dtype}, shape, 2);
        check({{true, true}, false, false, gradients, dtype}, shape, 1);
      }
}

// What a step says of its output is what a norm would find in it.
TEST(Pointwise, MomentsOnTheWayAreThoseOfTheOutput) {
  if (!on_gpu) GTEST_SKIP() << "TESSERA_TEST_DEVICE is not cuda";
  torch::manual_seed(8);
  for (const auto dtype : {at::kDouble, at::kFloat, at::kBFloat16})
    for (const std::int64_t channels : {5, 16, 64})
      for (const bool two : {false, true}) {
        SCOPED_TRACE(tessera::concat(channels, " channels, ", two ? 2 : 1, " terms, ", dtype));
        const Shape shape{channels, 67, 43};
        const Norm norm(channels, dtype);
        PointwiseOptions options{.terms = {{&norm.op, norm.mine, "norm"}},
                                 .relu = true,
                                 .channels = channels,
                                 .on_gpu = true,
                                 .moments = true};
        if (two) options.terms.emplace_back();
        options.mask_from_output = two;
        std::vector<Slab> inputs(options.terms.size());
        for (Slab& input : inputs) input = random_slab(shape, 2, dtype);
        Saved saved;
        PassInfo pass;
        pass.options = inputs[0].data.options();
        const auto kernel = make_pointwise_kernel(options);
        const ForwardArgs args{inputs, inputs[0].box, inputs[0].box, pass, saved};
        const Slab out = kernel->forward(args);
        ASSERT_TRUE(out.moments.defined());
        const auto pixels = out.data.to(at::kDouble).permute({1, 0, 2, 3}).flatten(1);
        const auto mean = pixels.mean(1, true);
        // Sums are float32 for all but double. Apart, because count and squares are thousands of times the means.
        const double allowed = tolerance_of(wide_dtype(dtype));
        EXPECT_EQ(out.moments[0].item<double>(), pixels.size(1));
        EXPECT_LT(relative_error(out.moments.narrow(0, 1, channels), mean.flatten()), allowed);
        EXPECT_LT(relative_error(out.moments.narrow(0, 1 + channels, channels), (pixels - mean).square().sum(1)),
                  allowed);
        // What backward makes again is the same to the bit.
        EXPECT_TRUE(torch::equal(kernel->recompute(args).data, out.data));
      }
}

TEST(Pointwise, GradientsThatOthersHoldAreLeftAlone) {
  torch::manual_seed(2);
  const Shape shape{4, 6, 5};
  Norm norm(4);
  const auto kernel = make_pointwise_kernel({.terms = {{&norm.op, norm.mine, "norm"}, {}},
                                             .relu = true,
                                             .mask_from_output = true,
                                             .channels = 4,
                                             .on_gpu = on_gpu});
  const std::vector<Slab> inputs{random_slab(shape, 2), random_slab(shape, 2)};
  const PassInfo pass{};
  Saved saved;
  const Slab out = kernel->forward({inputs, inputs[0].box, inputs[0].box, pass, saved});
  const Slab held = random_slab(shape, 2);
  const auto before = held.data.clone();
  BackwardArgs args{inputs, out, {held, held}, {true, true}, {}, out.box, pass, saved};
  const auto dx = kernel->input_gradients(args);
  EXPECT_TRUE(torch::equal(held.data, before));
  EXPECT_NE(dx[0].data.data_ptr(), dx[1].data.data_ptr());
}

TEST(Pointwise, ASlabInsideALargerOneIsReadInPlace) {
  torch::manual_seed(3);
  Slab large = random_slab({5, 12, 11}, 3);
  large.data = large.data.cpu();
  const Slab inside = narrowed(large, image_box({1, 3}, {2, 9}, {3, 8}));
  const auto m = loops::moments(inside.data);
  const auto dense = inside.data.contiguous();
  EXPECT_EQ(m.count, 2 * 7 * 5);
  for (int c = 0; c < 5; ++c) {
    const auto values = dense.select(1, c);
    EXPECT_NEAR(m.mean[static_cast<std::size_t>(c)], values.mean().item<double>(), 1e-12);
    EXPECT_NEAR(m.m2[static_cast<std::size_t>(c)] / 69, values.var().item<double>(), 1e-12);
  }
}

TEST(Pointwise, VarianceKeepsItsDigitsFarFromZero) {
  torch::manual_seed(4);
  Slab x = empty_slab(image_box({0, 1}, {0, 200}, {0, 200}), 1, at::kFloat);
  x.data.copy_(torch::randn({1, 1, 200, 200}, at::kDouble) + 1e4);
  const auto m = loops::moments(x.data);
  EXPECT_LT(std::abs(m.m2[0] / 39999 / x.data.to(at::kDouble).var().item<double>() - 1), 1e-5);
}

TEST(Pointwise, NanGoesThroughReluToTheLoss) {
  const auto kernel = make_pointwise_kernel({.terms = {{}}, .relu = true, .channels = 1});
  const std::vector<Slab> inputs{{torch::full({1, 1, 1, 1}, std::nan(""), at::kDouble), Shape{}.box({0, 1})}};
  const PassInfo pass{};
  Saved saved;
  EXPECT_TRUE(std::isnan(kernel->forward({inputs, inputs[0].box, inputs[0].box, pass, saved}).data.item<double>()));
}

TEST(Pointwise, ANormOverOneNumberIsRefusedWithTheFlagToChange) {
  Norm norm(2);
  const auto kernel = make_pointwise_kernel({.terms = {{&norm.op, norm.mine, "bn7"}}, .channels = 2, .on_gpu = on_gpu});
  const std::vector<Slab> inputs{random_slab({2, 1, 1}, 1)};
  const PassInfo pass{};
  Saved saved;
  try {
    kernel->forward({inputs, inputs[0].box, inputs[0].box, pass, saved});
    FAIL() << "a norm over one number went through";
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("bn7"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("--batch-size"), std::string::npos);
  }
}

}  // namespace
}  // namespace tessera
