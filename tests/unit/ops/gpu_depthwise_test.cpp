// The GPU's own depthwise convolutions against torch's in double.
#include "support/compare.h"
#include "support/device.h"
#include "tessera/base/error.h"
#include "tessera/ops/cuda/gpu.h"
#include "unit/ops/parts.h"

namespace tessera {
namespace {

struct DepthwiseCase {
  std::int64_t kernel, stride;
  at::ScalarType dtype;
  double allowed;
};

class GpuDepthwise : public testing::TestWithParam<DepthwiseCase> {};

TEST_P(GpuDepthwise, EqualsTorchInDouble) {
  if (test::device() != at::kCUDA) GTEST_SKIP() << "for GPUs: set TESSERA_TEST_DEVICE=cuda";
  const auto [kernel, stride, dtype, allowed] = GetParam();
  const auto options = at::TensorOptions(test::device()).dtype(dtype);
  Numbers numbers(static_cast<unsigned>(kernel + 10 * stride), options);
  constexpr int trials = 14;
  for (int trial = 0; trial < trials; ++trial) {
    // The last has more tiles than blocks sum a weight gradient.
    const bool large = trial == trials - 1;
    const std::int64_t samples = large ? 1 : numbers.pick(1, 2);
    // Widths that threads take whole, and others.
    const std::int64_t channels = trial % 3 == 0 ? numbers.pick(1, 30) : 8 * numbers.pick(1, large ? 8 : 25);
    const Part in = large ? numbers.part(1, channels, 301 * stride, 290 * stride)
                          : numbers.part(samples, channels, numbers.pick(7, 60), numbers.pick(7, 70));
    const Origin origin{numbers.pick(-3, 2), numbers.pick(-3, 2)};
    const Part out = large ? numbers.part(1, channels, 301, 290)
                           : numbers.part(samples, channels, numbers.pick(1, 40), numbers.pick(1, 50));
    const auto upstream = trial % 2 ? out.data.clone() : out.data;
    const auto weights = torch::randn({channels, 1, kernel, kernel}, options);
    const auto bias = trial % 4 ? torch::Tensor() : torch::randn({channels}, options);
    SCOPED_TRACE(
        concat("in ", in.data.sizes(), ", out ", out.data.sizes(), ", from ", origin.row, ", ", origin.column));

    const auto x = exact(in.data).requires_grad_(true), w = exact(weights).requires_grad_(true);
    const auto expected =
        torch::conv2d(from_origin(x, origin, kernel, stride, out.data), w,
                      bias.defined() ? exact(bias) : torch::Tensor(), stride, at::IntArrayRef(0), 1, channels);
    ASSERT_EQ(expected.sizes(), out.data.sizes());
    (expected * exact(upstream)).sum().backward();

    const auto sum = torch::ones(weights.sizes(), options.dtype(wide_dtype(dtype)));
    gpu::depthwise_weight_gradient(in.data, origin, upstream, stride, sum);
    EXPECT_LT(test::relative_error(exact(sum) - 1, w.grad()), dtype == at::kDouble ? allowed : 1e-5);
    const Part dx = numbers.part(samples, channels, in.data.size(2), in.data.size(3));
    gpu::depthwise_input_gradient(upstream, origin, weights, stride, dx.data);
    EXPECT_LT(test::relative_error(exact(dx.data), x.grad()), allowed);
    dx.expect_surroundings_untouched();
    gpu::depthwise(in.data, origin, weights, bias, stride, out.data);
    EXPECT_LT(test::relative_error(exact(out.data), expected), allowed);
    out.expect_surroundings_untouched();
  }
}

std::vector<DepthwiseCase> depthwise_cases() {
  std::vector<DepthwiseCase> all;
  for (const std::int64_t kernel : {3, 5, 7})
    for (const std::int64_t stride : {1, 2}) {
      all.push_back({kernel, stride, at::kDouble, 1e-12});
      all.push_back({kernel, stride, at::kFloat, 1e-5});
      all.push_back({kernel, stride, at::kBFloat16, 4e-3});
    }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Table, GpuDepthwise, testing::ValuesIn(depthwise_cases()), [](const auto& row) {
  const auto& c = row.param;
  return concat(c.kernel, "x", c.kernel, "_stride_", c.stride, "_", c10::toString(c.dtype));
});

}  // namespace
}  // namespace tessera
