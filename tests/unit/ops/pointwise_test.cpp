// Fused norms, sums, products and activations against the separate operations of torch's autograd.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "pointwise_rig.h"
#include "tessera/base/error.h"
#include "tessera/ops/cpu/pointwise_loops.h"

namespace tessera {
namespace {

using namespace test;

const Activation relu{ActivationKind::relu};

// A sum of terms, with a ReLU or not. One bool per term: whether it is normalised.
StepCase sum_of(const std::vector<bool>& normed, bool with_relu, bool by_output, int gradients,
                at::ScalarType dtype = at::kDouble) {
  StepCase c{.gradients = gradients, .dtype = dtype};
  for (const bool n : normed) c.terms.push_back(n ? batch_norm() : nullptr);
  if (!with_relu) return c;
  c.activation = relu;
  c.expected_activation = [](const auto& x) { return torch::relu(x); };
  c.by_output = by_output;
  return c;
}

TEST(Pointwise, EveryFusionEqualsAutograd) {
  torch::manual_seed(1);
  const std::vector<Shape> shapes{{1, 9, 7}, {3, 17, 13}, {16, 8, 8}, {33, 5, 31}, {1030, 3, 2}};
  for (const auto& shape : shapes)
    for (int gradients : {1, 2}) {
      for (const bool relu : {false, true})
        for (const bool output : {false, true}) {
          if (!relu && output) continue;
          check_step(sum_of({true}, relu, output, gradients), shape, 2);
          check_step(sum_of({false}, relu, output, gradients), shape, 2);
        }
      for (const bool relu : {false, true})
        for (const bool first : {false, true})
          for (const bool second : {false, true})
            for (const bool output : {false, true})
              check_step(sum_of({first, second}, relu, output, gradients), shape, 3);
    }
}

// All norms, and none: beside each other where a program joins them, that is where they agree with the same ranks.
std::vector<std::vector<NormPtr>> joined_terms() {
  const NormPtr none,
      batch = batch_norm(), plain_batch = norm_of(BatchNormOptions{.affine = false}),
      frozen = norm_of(BatchNormOptions{.frozen = true}), group = norm_of(GroupNormOptions{.groups = 3}),
      whole = norm_of(GroupNormOptions{.groups = 1, .affine = false}),
      instance = norm_of(InstanceNormOptions{.affine = true}), plain_instance = norm_of(InstanceNormOptions{}),
      scale = norm_of(ScaleOptions{});
  return {{group},
          {whole},
          {instance},
          {plain_instance},
          {scale},
          {frozen},
          {plain_batch},
          {group, none},
          {none, group},
          {group, instance},
          {instance, group},
          {group, scale},
          {scale, none},
          {scale, scale},
          {scale, batch},
          {batch, frozen},
          {batch, plain_batch},
          {whole, plain_instance},
          {none, frozen}};
}

TEST(Pointwise, EveryNormEqualsAutogradAloneAndBesideAnother) {
  torch::manual_seed(11);
  for (const Shape& shape : {Shape{3, 9, 7}, Shape{24, 5, 8}, Shape{33, 4, 3}})
    for (const auto& terms : joined_terms())
      for (const int gradients : {1, 2})
        for (const bool with_relu : {false, true})
          for (const bool output : {false, true}) {
            if (!with_relu && output) continue;
            StepCase c = sum_of({}, with_relu, output, gradients);
            c.terms = terms;
            check_step(c, shape, 3);
          }
}

TEST(Pointwise, ProductsEqualAutograd) {
  torch::manual_seed(12);
  std::vector<std::vector<NormPtr>> factors{
      {nullptr, nullptr}, {batch_norm(), nullptr}, {nullptr, batch_norm()}, {batch_norm(), batch_norm()}};
  for (auto& terms : joined_terms())
    if (terms.size() == 2) factors.push_back(std::move(terms));
  for (const Shape& shape : {Shape{3, 9, 7}, Shape{24, 5, 8}, Shape{33, 4, 3}})
    for (const auto& terms : factors)
      for (const int gradients : {1, 2})
        for (const bool with_relu : {false, true}) {
          StepCase c = sum_of({}, with_relu, false, gradients);
          c.terms = terms;
          c.combine = Combine::product;
          check_step(c, shape, 3);
        }
}

// A gate beside what it lets through: a number for each channel, each pixel, or each sample.
TEST(Pointwise, ASecondTermThatStandsForAllEqualsAutograd) {
  torch::manual_seed(13);
  const std::vector<NormPtr> firsts{nullptr,
                                    batch_norm(),
                                    norm_of(GroupNormOptions{.groups = 3}),
                                    norm_of(InstanceNormOptions{}),
                                    norm_of(ScaleOptions{}),
                                    norm_of(BatchNormOptions{.frozen = true})};
  for (const Shape& shape : {Shape{3, 9, 7}, Shape{24, 5, 8}, Shape{33, 4, 3}})
    for (const auto& first : firsts)
      for (const Spread second : {Spread::one_channel, Spread::one_position, Spread::one_number})
        for (const Combine combine : {Combine::sum, Combine::product})
          for (const int gradients : {1, 2})
            for (const bool with_relu : {false, true}) {
              StepCase c = sum_of({}, with_relu, false, gradients);
              c.terms = {first, nullptr};
              c.combine = combine;
              c.second = second;
              check_step(c, shape, 3);
            }
}

// Several widths of memory access, and slabs long enough for every loop of the GPU's kernels.
TEST(Pointwise, EveryTypeEqualsAutogradOnTheGpu) {
  if (!on_gpu) GTEST_SKIP() << "TESSERA_TEST_DEVICE is not cuda";
  torch::manual_seed(7);
  for (const auto dtype : {at::kDouble, at::kFloat, at::kBFloat16})
    for (const Shape& shape : {Shape{3, 31, 29}, Shape{16, 127, 301}, Shape{64, 65, 33}, Shape{2056, 9, 5}})
      for (int gradients : {1, 2}) {
        check_step(sum_of({true}, true, false, gradients, dtype), shape, 2);
        check_step(sum_of({true, false}, true, true, gradients, dtype), shape, 2);
        check_step(sum_of({true, true}, false, false, gradients, dtype), shape, 1);
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
        const NormRig norm(batch_norm(), channels, dtype);
        PointwiseOptions options{
            .terms = {norm.term(shape, dtype)}, .activation = relu, .by_output = two, .shape = shape, .moments = true};
        if (two) options.terms.push_back({.norm = {}, .shape = shape, .computed = wide_dtype(dtype)});
        std::vector<Slab> inputs(options.terms.size());
        for (Slab& input : inputs) input = wide_random_slab(shape, 2, dtype);
        Saved saved;
        PassInfo pass;
        pass.options = inputs[0].data.options();
        const auto kernel = make_step(options);
        const ForwardArgs args{inputs, inputs[0].box, inputs[0].box, pass, saved};
        const Slab out = run_forward(*kernel, Agreement::norm, args);
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
  const NormRig norm(batch_norm(), 4);
  const auto kernel =
      make_step({.terms = {norm.term(shape, at::kDouble), {.norm = {}, .shape = shape, .computed = at::kDouble}},
                 .activation = relu,
                 .by_output = true,
                 .shape = shape});
  const std::vector<Slab> inputs{wide_random_slab(shape, 2), wide_random_slab(shape, 2)};
  PassInfo pass{};
  pass.options = inputs[0].data.options();
  Saved saved;
  const Slab out = run_forward(*kernel, Agreement::norm, {inputs, inputs[0].box, inputs[0].box, pass, saved});
  const Slab held = wide_random_slab(shape, 2);
  const auto before = held.data.clone();
  BackwardArgs args{inputs, out, {held, held}, {true, true}, {}, out.box, pass, saved};
  const auto dx = run_input_gradients(*kernel, Agreement::norm, args);
  EXPECT_TRUE(torch::equal(held.data, before));
  EXPECT_NE(dx[0].data.data_ptr(), dx[1].data.data_ptr());
}

TEST(Pointwise, ASlabInsideALargerOneIsReadInPlace) {
  torch::manual_seed(3);
  Slab large = wide_random_slab({5, 12, 11}, 3);
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
  const auto kernel = make_pointwise_kernel({.terms = {{}}, .activation = relu});
  const std::vector<Slab> inputs{{torch::full({1, 1, 1, 1}, std::nan(""), at::kDouble), Shape{}.box({0, 1})}};
  const PassInfo pass{};
  Saved saved;
  EXPECT_TRUE(std::isnan(kernel->forward({inputs, inputs[0].box, inputs[0].box, pass, saved}).data.item<double>()));
}

TEST(Pointwise, ANormOverOneNumberIsRefusedWithTheFlagToChange) {
  const NormRig norm(batch_norm(), 2);
  PointwiseTerm term = norm.term({2, 1, 1}, at::kDouble);
  term.name = "bn7";
  const auto kernel = make_step({.terms = {term}, .shape = {2, 1, 1}});
  const std::vector<Slab> inputs{wide_random_slab({2, 1, 1}, 1)};
  PassInfo pass{};
  pass.options = inputs[0].data.options();
  Saved saved;
  try {
    run_forward(*kernel, Agreement::norm, {inputs, inputs[0].box, inputs[0].box, pass, saved});
    FAIL() << "a norm over one number went through";
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("bn7"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("normalises over one number per channel"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("--batch-size"), std::string::npos);
  }
}

}  // namespace
}  // namespace tessera
