// Convolutions of random sizes on parts of larger memory: what must not be read is NaN, and what must not be written
// has to stay so.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <random>
#include <string>

#include "tessera/base/error.h"
#include "tessera/ops/slab.h"

namespace tessera::test {

class Random {
 public:
  explicit Random(unsigned seed) : engine_(seed) { torch::manual_seed(seed); }
  std::int64_t pick(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(engine_);
  }

 private:
  std::mt19937 engine_;
};

// A channels-last view into the middle of memory that is otherwise NaN.
struct Framed {
  torch::Tensor memory, view;
  Framed(Random& random, std::int64_t n, std::int64_t c, std::int64_t h, std::int64_t w) {
    const auto top = random.pick(0, 3), left = random.pick(0, 3);
    memory = torch::full({n, c, h + top + random.pick(0, 3), w + left + random.pick(0, 3)}, std::nan(""))
                 .contiguous(at::MemoryFormat::ChannelsLast);
    view = memory.narrow(2, top, h).narrow(3, left, w);
  }
  void fill_with_random() { view.copy_(torch::randn(view.sizes())); }
  void expect_frame_untouched() const {
    EXPECT_EQ(torch::isnan(memory).sum().item<std::int64_t>(), memory.numel() - view.numel());
  }
};

// One convolution of random sizes, and what float64 says about it.
struct ConvCase {
  std::int64_t side, stride;
  std::int64_t samples, in, out, rows, columns;
  std::int64_t top, left, bottom, right;  // padding; negative crops
  Framed x, y, dx, dy;
  torch::Tensor weights, bias, expected_y, expected_dx, expected_dw;

  explicit ConvCase(Random& r, std::int64_t window = 3, std::int64_t step = 1)
      : side(window),
        stride(step),
        samples(r.pick(1, 3)),
        // With many channels, all patches are taken at once.
        in(r.pick(0, 3) > 0 ? r.pick(1, 90) : r.pick(150, 200)),
        out(r.pick(0, 3) > 0 ? r.pick(1, 90) : r.pick(150, 200)),
        rows(r.pick(side, side + 18 * step)),
        columns(r.pick(side, side + 18 * step)),
        top(r.pick(-1, 3)),
        left(r.pick(-1, 3)),
        bottom(r.pick(1, 3)),
        right(r.pick(1, 3)),
        x(r, samples, in, rows, columns),
        y(r, samples, out, outputs(rows + top + bottom), outputs(columns + left + right)),
        dx(r, samples, in, rows, columns),
        dy(r, samples, out, outputs(rows + top + bottom), outputs(columns + left + right)) {
    x.fill_with_random();
    dy.fill_with_random();
    weights = torch::randn({out, in, side, side});
    if (r.pick(0, 1)) weights = weights.contiguous(at::MemoryFormat::ChannelsLast);
    if (r.pick(0, 1)) bias = torch::randn({out});
    const auto leaf = x.view.to(at::kDouble).detach().requires_grad_(true);
    const auto w = weights.to(at::kDouble).detach().requires_grad_(true);
    const auto result = torch::conv2d(
        torch::nn::functional::pad(leaf, torch::nn::functional::PadFuncOptions({left, right, top, bottom})), w,
        bias.defined() ? bias.to(at::kDouble) : torch::Tensor(), stride);
    (result * dy.view.to(at::kDouble)).sum().backward();
    expected_y = result.detach();
    expected_dx = leaf.grad();
    expected_dw = w.grad();
  }
  std::int64_t outputs(std::int64_t padded) const { return (padded - side) / stride + 1; }
  Origin origin() const { return {-top, -left}; }
  std::string str() const {
    return tessera::concat(side, " x ", side, " by ", stride, ", ", samples, " x ", in, " -> ", out, " channels, ",
                           rows, " x ", columns, ", padding ", top, " ", left, " ", bottom, " ", right);
  }
};

inline Rows<const float> read(const Framed& f) { return rows_of<const float>(f.view); }
inline Rows<float> write(const Framed& f) { return rows_of<float>(f.view); }

}  // namespace tessera::test
