// Every activation of graph/activations.h against torch's: its value and its gradient, alone and behind a norm.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "pointwise_rig.h"

namespace tessera {
namespace {

using namespace test;

struct Row {
  Activation activation;
  TorchFunction torch;
  friend std::ostream& operator<<(std::ostream& out, const Row& row) { return out << to_string(row.activation.kind); }
};

// One row per line of TESSERA_ACTIVATIONS, in its order.
const std::vector<Row> table{
    {{ActivationKind::relu}, [](const auto& x) { return torch::relu(x); }},
    {{ActivationKind::relu6}, [](const auto& x) { return torch::relu6(x); }},
    {{ActivationKind::leaky_relu, 0.2}, [](const auto& x) { return torch::leaky_relu(x, 0.2); }},
    {{ActivationKind::elu, 0.7}, [](const auto& x) { return torch::elu(x, 0.7); }},
    {{ActivationKind::silu}, [](const auto& x) { return torch::silu(x); }},
    {{ActivationKind::gelu}, [](const auto& x) { return torch::gelu(x, "none"); }},
    {{ActivationKind::gelu_tanh}, [](const auto& x) { return torch::gelu(x, "tanh"); }},
    {{ActivationKind::sigmoid}, [](const auto& x) { return torch::sigmoid(x); }},
    {{ActivationKind::tanh}, [](const auto& x) { return torch::tanh(x); }},
    // In double, torch's own of these two take 1/6 in float32, on some devices.
    {{ActivationKind::hard_sigmoid}, [](const auto& x) { return torch::relu6(x + 3) / 6; }},
    {{ActivationKind::hard_swish}, [](const auto& x) { return x * torch::relu6(x + 3) / 6; }},
    {{ActivationKind::mish}, [](const auto& x) { return torch::mish(x); }},
    {{ActivationKind::softsign}, [](const auto& x) { return x / (1 + x.abs()); }},
    {{ActivationKind::hard_tanh, 1.5}, [](const auto& x) { return torch::hardtanh(x, -1.5, 1.5); }},
    {{ActivationKind::times, -0.3}, [](const auto& x) { return x * -0.3; }},
    {{ActivationKind::plus, 0.4}, [](const auto& x) { return x + 0.4; }},
};

int activations_there_are() {
  int count = 0;
#define TESSERA_COUNT(...) ++count;
  TESSERA_ACTIVATIONS(TESSERA_COUNT)
#undef TESSERA_COUNT
  return count;
}

TEST(ActivationTable, HasARowForEveryActivation) {
  ASSERT_EQ(static_cast<int>(table.size()), activations_there_are());
  for (std::size_t i = 0; i < table.size(); ++i)
    EXPECT_EQ(table[i].activation.kind, static_cast<ActivationKind>(i)) << "row " << i;
}

class Activations : public testing::TestWithParam<Row> {
 protected:
  // Where backward may read the derivative.
  static std::vector<bool> ways() {
    return derivative_by_value(GetParam().activation.kind) ? std::vector{false, true} : std::vector{false};
  }
  // Of x, [n], and of its gradient, for an upstream gradient of 1: what the kernel says, as doubles.
  static std::pair<at::Tensor, at::Tensor> passes(const at::Tensor& x, bool by_output) {
    const Shape shape{1, 1, x.size(0)};
    const at::ScalarType wide = wide_dtype(x.scalar_type());
    const auto kernel = make_step({.terms = {{.norm = {}, .shape = shape, .computed = wide}},
                                   .activation = GetParam().activation,
                                   .by_output = by_output,
                                   .shape = shape});
    const std::vector<Slab> inputs{{channels_last(x.view({1, 1, 1, -1})), shape.box({0, 1})}};
    PassInfo pass{};
    pass.options = x.options();
    Saved saved;
    const Slab out = kernel->forward({inputs, inputs[0].box, inputs[0].box, pass, saved});
    BackwardArgs args{inputs, out, {{torch::ones_like(out.data), out.box}}, {true}, {}, out.box, pass, saved};
    const Slab dx = kernel->input_gradients(args)[0];
    return {out.data.flatten().to(at::kDouble), dx.data.flatten().to(at::kDouble)};
  }
  static std::pair<at::Tensor, at::Tensor> expected(const at::Tensor& x) {
    const auto leaf = x.to(at::kDouble, false, /*copy=*/true).requires_grad_(true);
    const auto y = GetParam().torch(leaf);
    y.sum().backward();
    return {y.detach(), leaf.grad()};
  }
};

double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<double>();  // NaN where one is
}

TEST_P(Activations, ValueAndSlopeAreTorchs) {
  for (const auto& [dtype, most] : {std::pair{at::kDouble, 1e-12}, std::pair{at::kFloat, 2e-6}})
    for (const bool by_output : ways()) {
      SCOPED_TRACE(tessera::concat(dtype, by_output ? " by output" : ""));
      // The numbers that networks have, an odd count of them, so that the last do not fill a vector.
      const auto x = torch::linspace(-12, 12, 24013, doubles()).to(dtype);
      const auto [y, slope] = passes(x, by_output);
      const auto [expected_y, expected_slope] = expected(x);
      EXPECT_LT(largest_difference(y, expected_y), most);
      EXPECT_LT(largest_difference(slope, expected_slope), most);
    }
}

TEST_P(Activations, KinksAndLargeNumbersAreTorchs) {
  for (const auto& [dtype, most] : {std::pair{at::kDouble, 1e-12}, std::pair{at::kFloat, 2e-6}})
    for (const bool by_output : ways()) {
      SCOPED_TRACE(tessera::concat(dtype, by_output ? " by output" : ""));
      const auto x =
          torch::tensor({0.0, -3.0, 3.0, 6.0, -30.0, 30.0, -100.0, 100.0, -800.0, 800.0, 1e-8, -1e-8, 1e-30, -1e-30},
                        doubles())
              .to(dtype);
      const auto [y, slope] = passes(x, by_output);
      const auto [expected_y, expected_slope] = expected(x);
      for (std::int64_t i = 0; i < x.size(0); ++i) {
        const double at = x[i].item<double>();
        // Where two pieces meet, either slope is right.
        if (GetParam().activation.kind == ActivationKind::hard_swish && std::abs(at) == 3) continue;
        const double size = std::max(1.0, std::abs(expected_y[i].item<double>()));
        EXPECT_NEAR(y[i].item<double>(), expected_y[i].item<double>(), most * size) << "value at " << at;
        EXPECT_NEAR(slope[i].item<double>(), expected_slope[i].item<double>(), most) << "slope at " << at;
      }
    }
}

TEST_P(Activations, NanGoesThrough) {
  for (const auto dtype : {at::kDouble, at::kFloat}) {
    const auto x = torch::full({19}, std::nan(""), doubles()).to(dtype);
    EXPECT_TRUE(torch::isnan(passes(x, false).first).all().item<bool>()) << dtype;
  }
}

TEST_P(Activations, FusedWithWhatComesBeforeTheyEqualAutograd) {
  torch::manual_seed(21);
  const std::vector<std::vector<NormPtr>> before{
      {nullptr}, {batch_norm()}, {norm_of(GroupNormOptions{.groups = 3})}, {nullptr, nullptr}, {batch_norm(), nullptr}};
  for (const auto& terms : before)
    for (const int gradients : {1, 2})
      for (const Combine combine : {Combine::sum, Combine::product})
        for (const bool by_output : ways())
          for (const auto& [dtype, allowed] : {std::pair{at::kDouble, 1e-12}, std::pair{at::kFloat, 2e-6}}) {
            if (combine == Combine::product && (terms.size() == 1 || by_output)) continue;
            check_step({.terms = terms,
                        .combine = combine,
                        .activation = GetParam().activation,
                        .expected_activation = GetParam().torch,
                        .by_output = by_output,
                        .gradients = gradients,
                        .dtype = dtype,
                        .allowed = allowed},
                       {9, 7, 11}, 2);
          }
}

TEST_P(Activations, BehindAGateTheyEqualAutograd) {
  torch::manual_seed(22);
  for (const NormPtr& first : {NormPtr{}, batch_norm(), norm_of(InstanceNormOptions{})})
    for (const Spread second : {Spread::one_channel, Spread::one_position})
      for (const Combine combine : {Combine::sum, Combine::product})
        for (const int gradients : {1, 2})
          check_step({.terms = {first, nullptr},
                      .combine = combine,
                      .second = second,
                      .activation = GetParam().activation,
                      .expected_activation = GetParam().torch,
                      .gradients = gradients},
                     {9, 7, 11}, 2);
}

INSTANTIATE_TEST_SUITE_P(Table, Activations, testing::ValuesIn(table),
                         [](const auto& row) { return std::string(to_string(row.param.activation.kind)); });

}  // namespace
}  // namespace tessera
