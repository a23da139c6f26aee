// Point-wise steps of any kind against the separate operations of torch's autograd.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <memory>

#include "support/compare.h"
#include "support/device.h"
#include "support/kernels.h"
#include "tessera/graph/graph.h"
#include "tessera/ops/pointwise.h"

namespace tessera::test {

inline const bool on_gpu = device() != at::kCPU;

inline std::unique_ptr<Kernel> make_step(PointwiseOptions options) {
  return on_gpu ? make_gpu_pointwise_kernel(std::move(options)) : make_pointwise_kernel(std::move(options));
}
/// As a program says it: with whom ranks agree in the middle of the step.
inline Agreement agreement_of(const PointwiseOptions& options) {
  for (const auto& term : options.terms)
    if (term.norm && term.norm->live()) return term.norm->by_sample() ? Agreement::tiles : Agreement::norm;
  return Agreement::none;
}

/// What rounding to a type leaves of the digits.
inline double tolerance_of(at::ScalarType dtype) {
  return dtype == at::kDouble ? 1e-12 : dtype == at::kFloat ? 1e-5 : 2e-2;
}

inline Slab wide_random_slab(const Shape& shape, std::int64_t samples, at::ScalarType dtype = at::kDouble) {
  Slab slab = empty_slab(shape.box({0, samples}), shape.channels, doubles().dtype(dtype));
  slab.data.copy_(torch::randn({samples, shape.channels, shape.height, shape.width}, at::kDouble) * 2 + 0.5);
  return slab;
}

using NormPtr = std::shared_ptr<const Norm>;
template <class Options>
NormPtr norm_of(const Options& options) {
  return std::make_shared<Norm>(options);
}
inline NormPtr batch_norm() { return norm_of(BatchNormOptions{.epsilon = 1e-5, .momentum = 0.3}); }

/// A norm with its own parameters, and autograd's copy of them.
struct NormRig {
  NormRig(NormPtr norm, std::int64_t channels, at::ScalarType dtype = at::kDouble) : op(std::move(norm)) {
    const auto options = doubles().dtype(wide_dtype(dtype));
    const Shape shape{channels, 1, 1};
    for (const auto& spec : op->parameters({&shape, 1})) {
      auto value = spec.suffix == "running_var" ? torch::rand(spec.sizes, options) : torch::randn(spec.sizes, options);
      if (spec.suffix == "num_batches_tracked") value = torch::zeros(spec.sizes, options.dtype(at::kLong));
      mine.values.push_back(value);
      mine.gradients.push_back(torch::zeros(spec.sizes, options));
      auto copy = value.to(spec.suffix == "num_batches_tracked" ? at::kLong : at::kDouble, false, /*copy=*/true);
      theirs.push_back(spec.trainable ? copy.requires_grad_(true) : copy);
    }
  }
  PointwiseTerm term(const Shape& shape, at::ScalarType dtype) const {
    return {.norm = op->norm, .parameters = mine, .name = "norm", .shape = shape, .computed = wide_dtype(dtype)};
  }
  torch::Tensor apply(const torch::Tensor& x) const {
    const NormFormula& f = op->norm;
    const auto parameter = [&](std::size_t i) { return f.affine ? theirs[i] : torch::Tensor(); };
    const std::size_t running = f.affine ? 2 : 0;
    switch (f.statistics) {
      case StatisticsOf::nothing:
        return x * theirs[0];
      case StatisticsOf::micro:
        return torch::batch_norm(x, parameter(0), parameter(1), theirs[running], theirs[running + 1], true, f.momentum,
                                 f.epsilon, false);
      case StatisticsOf::running:
        return torch::batch_norm(x, parameter(0), parameter(1), theirs[running], theirs[running + 1], false, f.momentum,
                                 f.epsilon, false);
      case StatisticsOf::sample:
        return torch::group_norm(x, f.groups > 0 ? f.groups : x.size(1), parameter(0), parameter(1), f.epsilon);
    }
    return {};
  }
  /// After a step of one micro.
  void expect_equal(double allowed) const {
    const auto specs = op->parameters(std::vector<Shape>{{mine.values.empty() ? 1 : mine.values[0].size(0), 1, 1}});
    for (std::size_t i = 0; i < specs.size(); ++i) {
      const std::string& name = specs[i].suffix;
      if (specs[i].trainable) {
        EXPECT_LT(relative_error(mine.gradients[i], theirs[i].grad()), allowed) << "gradient of " << name;
      } else if (name == "num_batches_tracked") {
        EXPECT_EQ(mine.gradients[i].item<double>(), op->norm.live() ? 1 : 0);
      } else {
        // What the only micro of a step adds to statistics that decay once.
        EXPECT_LT(relative_error(mine.values[i] * specs[i].decay + mine.gradients[i], theirs[i]), allowed) << name;
      }
    }
  }
  NormPtr op;
  NodeParameters mine;
  std::vector<torch::Tensor> theirs;
};

/// How the second term lies beside the first.
enum class Spread { full, one_channel, one_position, one_number };
inline Shape spread_shape(const Shape& s, Spread spread) {
  switch (spread) {
    case Spread::full:
      return s;
    case Spread::one_channel:
      return {1, s.height, s.width};
    case Spread::one_position:
      return {s.channels, 1, 1};
    case Spread::one_number:
      return {1, 1, 1};
  }
  return s;
}

using TorchFunction = std::function<torch::Tensor(const torch::Tensor&)>;

struct StepCase {
  std::vector<NormPtr> terms;  ///< one per term; null: the value as it is
  Combine combine = Combine::sum;
  Spread second = Spread::full;
  std::optional<Activation> activation = {};
  TorchFunction expected_activation = {};
  bool by_output = false;
  int gradients = 1;
  at::ScalarType dtype = at::kDouble;
  double allowed = 0;  ///< relative; 0: what the type leaves

  friend std::ostream& operator<<(std::ostream& out, const StepCase& c) {
    for (std::size_t t = 0; t < c.terms.size(); ++t)
      out << (t == 0 ? "" : c.combine == Combine::sum ? " + " : " * ") << (c.terms[t] ? c.terms[t]->kind() : "plain");
    if (c.second != Spread::full) out << " spread " << static_cast<int>(c.second);
    if (c.activation) out << ", " << to_string(c.activation->kind);
    return out << (c.by_output ? " by output" : "") << ", " << c.gradients << " gradients, " << c.dtype;
  }
};

inline void check_step(const StepCase& c, const Shape& shape, std::int64_t samples) {
  SCOPED_TRACE(tessera::concat(c, ", ", shape, " x ", samples));
  const double allowed = c.allowed > 0 ? c.allowed : tolerance_of(c.dtype);
  PointwiseOptions options{
      .terms = {}, .combine = c.combine, .activation = c.activation, .by_output = c.by_output, .shape = shape};
  std::vector<std::optional<NormRig>> norms;
  std::vector<Slab> inputs;
  std::vector<torch::Tensor> leaves;
  torch::Tensor expected;
  for (std::size_t t = 0; t < c.terms.size(); ++t) {
    const Shape of_term = t == 0 ? shape : spread_shape(shape, c.second);
    inputs.push_back(wide_random_slab(of_term, samples, c.dtype));
    leaves.push_back(inputs[t].data.to(at::kDouble, false, /*copy=*/true).contiguous().requires_grad_(true));
    auto& norm = norms.emplace_back();
    auto term = leaves[t];
    if (c.terms[t]) {
      norm.emplace(c.terms[t], shape.channels, c.dtype);
      term = norm->apply(term);
    }
    options.terms.push_back(norm ? norm->term(of_term, c.dtype)
                                 : PointwiseTerm{.norm = {}, .shape = of_term, .computed = wide_dtype(c.dtype)});
    expected = t == 0 ? term : c.combine == Combine::sum ? expected + term : expected * term;
  }
  if (c.activation) expected = c.expected_activation(expected);

  const Agreement agreement = agreement_of(options);
  const auto kernel = make_step(options);
  PassInfo pass{};
  pass.options = inputs[0].data.options();
  Saved saved;
  const Slab out = run_forward(*kernel, agreement, {inputs, inputs[0].box, inputs[0].box, pass, saved});
  EXPECT_LT(relative_error(out.data, expected), allowed);
  EXPECT_TRUE(torch::equal(kernel->recompute({inputs, inputs[0].box, inputs[0].box, pass, saved}).data, out.data));

  std::vector<Slab> gradients;
  torch::Tensor upstream = torch::zeros_like(expected);
  for (int g = 0; g < c.gradients; ++g) {
    gradients.push_back(wide_random_slab(shape, samples, c.dtype));
    upstream = upstream + gradients.back().data;
  }
  expected.backward(upstream);
  BackwardArgs args{inputs, out,  std::move(gradients), std::vector<bool>(inputs.size(), true), {}, out.box,
                    pass,   saved};
  const auto dx = run_input_gradients(*kernel, agreement, args);
  for (std::size_t t = 0; t < inputs.size(); ++t) {
    EXPECT_EQ(dx[t].box, inputs[t].box);
    EXPECT_LT(relative_error(dx[t].data, leaves[t].grad()), allowed) << "term " << t;
    if (norms[t]) norms[t]->expect_equal(allowed);
  }
}

}  // namespace tessera::test
