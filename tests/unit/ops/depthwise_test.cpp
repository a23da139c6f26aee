// The own gradient of the weights of depthwise convolutions against torch's in float64.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "support/compare.h"
#include "tessera/ops/conv_way.h"

namespace tessera {
namespace {

struct Case {
  std::int64_t channels, size, kernel, stride, dilation, pad;
};

TEST(Depthwise, WeightGradientEqualsTorch) {
  torch::manual_seed(1);
  for (const Case& c : {Case{20, 23, 5, 1, 1, 2}, Case{33, 19, 9, 3, 1, 0}, Case{16, 17, 3, 1, 2, 2},
                        Case{7, 12, 7, 2, 1, 3}, Case{64, 6, 7, 1, 1, 3}}) {
    SCOPED_TRACE(concat(c.channels, " channels, ", c.kernel, "x", c.kernel, " /", c.stride));
    const auto x = torch::randn({2, c.channels, c.size, c.size + 3});
    const auto w = torch::randn({c.channels, 1, c.kernel, c.kernel}, torch::kDouble).requires_grad_(true);
    const auto y = torch::conv2d(x.to(torch::kDouble), w, {}, c.stride, c.pad, c.dilation, c.channels);
    const auto g = torch::randn(y.sizes());
    y.backward(g.to(torch::kDouble));
    const ConvFacts facts{.windows = Windows(c.kernel, c.stride, c.pad, c.pad, c.dilation),
                          .in_channels = c.channels,
                          .out_channels = c.channels,
                          .groups = c.channels};
    const auto way = depthwise_way(facts);
    ASSERT_TRUE(way->pays({}, ConvPass::weight_gradient));
    auto sum = torch::zeros(w.sizes());
    way->weight_gradient(channels_last(x), {-c.pad, -c.pad}, channels_last(g), sum);
    EXPECT_LT(test::relative_error(sum, w.grad()), 1e-6);
    // It adds to what is there.
    way->weight_gradient(channels_last(x), {-c.pad, -c.pad}, channels_last(g), sum);
    EXPECT_LT(test::relative_error(sum, 2 * w.grad()), 1e-6);
  }
}

}  // namespace
}  // namespace tessera
