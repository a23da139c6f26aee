// Convolutions as matrix products in float32 against float64, on parts of larger memory.
#include "tessera/ops/cpu/direct.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "support/compare.h"
#include "unit/ops/conv_case.h"

namespace tessera {
namespace {

using test::ConvCase;
using test::Random;
using test::read;
using test::relative_error;
using test::write;

// A few units of float32's rounding.
constexpr double direct_tolerance = 2e-6;

// Every window that there is, and some with more stride than taps: their inputs see nothing and get zeros.
ConvCase any_case(Random& random) { return ConvCase(random, random.pick(1, 7), random.pick(1, 3)); }

TEST(Direct, EqualsFloat64InsideLargerMemory) {
  Random random(11);
  for (int trial = 0; trial < 80; ++trial) {
    const ConvCase c = any_case(random);
    SCOPED_TRACE(c.str());
    at::set_num_threads(1 + trial % 2);
    direct_forward(read(c.x), c.origin(), c.stride, c.weights, c.bias.defined() ? c.bias.data_ptr<float>() : nullptr,
                   write(c.y));
    EXPECT_LT(relative_error(c.y.view, c.expected_y), direct_tolerance);
    c.y.expect_frame_untouched();
    direct_input_gradient(read(c.dy), c.origin(), c.stride, c.weights, write(c.dx));
    EXPECT_LT(relative_error(c.dx.view, c.expected_dx), direct_tolerance);
    c.dx.expect_frame_untouched();
    const auto start = torch::randn_like(c.weights);
    const auto sum = start.clone();
    direct_weight_gradient(read(c.x), c.origin(), c.stride, read(c.dy), sum);
    EXPECT_LT(relative_error(sum, start + c.expected_dw), direct_tolerance);
    at::set_num_threads(1);
  }
}

// All rows are one where no memory lies between them.
TEST(Direct, SinglePixelsWithoutGaps) {
  torch::manual_seed(12);
  for (const std::int64_t channels : {5, 16, 72}) {
    const auto last = at::MemoryFormat::ChannelsLast;
    const auto x = torch::randn({2, channels, 13, 17}).contiguous(last), w = torch::randn({40, channels, 1, 1});
    const auto y = torch::full({2, 40, 13, 17}, std::nan("")).contiguous(last);
    direct_forward(rows_of<const float>(x), {0, 0}, 1, w, nullptr, rows_of<float>(y));
    EXPECT_LT(relative_error(y, torch::conv2d(x.to(at::kDouble), w.to(at::kDouble))), direct_tolerance);
    const auto dx = torch::full_like(x, std::nan("")), sum = torch::zeros_like(w);
    direct_input_gradient(rows_of<const float>(y), {0, 0}, 1, w, rows_of<float>(dx));
    direct_weight_gradient(rows_of<const float>(x), {0, 0}, 1, rows_of<const float>(y), sum);
    const auto x64 = x.to(at::kDouble).requires_grad_(true), w64 = w.to(at::kDouble).requires_grad_(true);
    (torch::conv2d(x64, w64) * y).sum().backward();
    EXPECT_LT(relative_error(dx, x64.grad()), direct_tolerance);
    EXPECT_LT(relative_error(sum, w64.grad()), direct_tolerance);
  }
}

TEST(Direct, WeightGradientsOfLargeImagesKeepTheirDigits) {
  torch::manual_seed(13);
  at::set_num_threads(1);
  const auto last = at::MemoryFormat::ChannelsLast;
  const auto x = torch::randn({1, 4, 512, 512}).contiguous(last), dy = torch::randn({1, 8, 512, 512}).contiguous(last);
  const auto sum = torch::zeros({8, 4, 1, 1});
  direct_weight_gradient(rows_of<const float>(x), {0, 0}, 1, rows_of<const float>(dy), sum);
  const auto w = torch::zeros({8, 4, 1, 1}, at::kDouble).requires_grad_(true);
  (torch::conv2d(x.to(at::kDouble), w) * dy).sum().backward();
  EXPECT_LT(relative_error(sum, w.grad()), direct_tolerance);
}

TEST(Direct, SameThreadsGiveTheSameBits) {
  Random random(14);
  at::set_num_threads(2);
  const ConvCase c(random, 3, 2);
  std::vector<torch::Tensor> sums;
  for (int run = 0; run < 3; ++run) {
    sums.push_back(torch::zeros_like(c.weights));
    direct_weight_gradient(read(c.x), c.origin(), c.stride, read(c.dy), sums.back());
  }
  EXPECT_TRUE(torch::equal(sums[0], sums[1]) && torch::equal(sums[1], sums[2]));
  at::set_num_threads(1);
}

}  // namespace
}  // namespace tessera
