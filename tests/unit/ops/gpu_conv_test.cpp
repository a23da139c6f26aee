// The GPU's own convolutions against torch's in double, on slabs with gaps and windows that begin anywhere.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <random>

#include "support/compare.h"
#include "support/device.h"
#include "tessera/ops/gpu.h"
#include "tessera/ops/kernel.h"
#include "tessera/runtime/parameters.h"

namespace tessera {
namespace {

using test::relative_error;

// What rounding to bfloat16 may do to a result; sums in float32 are exact beside that.
constexpr double rounded = 4e-3, summed = 1e-5;

class Numbers {
 public:
  explicit Numbers(unsigned seed) : random_(seed) { torch::manual_seed(seed); }
  std::int64_t pick(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random_);
  }
  // Channels-last, a part of something larger that is full of NaNs.
  at::Tensor slab(std::int64_t samples, std::int64_t channels, std::int64_t rows, std::int64_t columns) {
    const std::int64_t above = pick(0, 2), left = pick(0, 3);
    const auto whole = torch::full({samples, rows + above + 1, columns + left + 2, channels}, std::nan(""), options())
                           .permute({0, 3, 1, 2});
    const auto part = whole.narrow(2, above, rows).narrow(3, left, columns);
    part.copy_(torch::randn(part.sizes(), options()));
    return part;
  }
  static at::TensorOptions options() { return at::TensorOptions(test::device()).dtype(at::kBFloat16); }

 private:
  std::mt19937 random_;
};

// What windows that begin at `origin` see, so that the first begins at 0.
torch::Tensor from_origin(const torch::Tensor& in, Origin origin, std::int64_t kernel, std::int64_t stride,
                          const at::Tensor& out) {
  const auto end = [&](int axis, std::int64_t begin) {
    return begin + (out.size(axis) - 1) * stride + kernel - in.size(axis);
  };
  return torch::constant_pad_nd(in, {-origin.column, end(3, origin.column), -origin.row, end(2, origin.row)}, 0);
}

struct Sizes {
  std::int64_t kernel, stride, in, out;
};

class GpuConv : public testing::TestWithParam<Sizes> {
 protected:
  void SetUp() override {
    if (test::device() != at::kCUDA) GTEST_SKIP() << "for GPUs: set TESSERA_TEST_DEVICE=cuda";
  }
};

TEST_P(GpuConv, EqualsTorchInDouble) {
  const auto [kernel, stride, channels, outputs] = GetParam();
  Numbers numbers(static_cast<unsigned>(kernel + 10 * stride + channels + outputs));
  for (int trial = 0; trial < 12; ++trial) {
    const std::int64_t samples = numbers.pick(1, 2);
    const auto in = numbers.slab(samples, channels, numbers.pick(5, 70), numbers.pick(5, 90));
    const Origin origin{numbers.pick(-3, 2), numbers.pick(-3, 2)};
    const auto out = numbers.slab(samples, outputs, numbers.pick(1, 40), numbers.pick(1, 70));
    const auto gradient = out.clone();  // without gaps, at times
    auto weights = torch::randn({outputs, channels, kernel, kernel}, Numbers::options());
    if (trial % 2) weights = weights.contiguous(at::MemoryFormat::ChannelsLast);
    SCOPED_TRACE(concat("in ", in.sizes(), ", out ", out.sizes(), ", from ", origin.row, ", ", origin.column));

    // On the CPU, so that compute-sanitizer has nothing else to look at.
    const auto exact = [](const at::Tensor& t) { return t.cpu().to(at::kDouble).contiguous(); };
    const auto x = exact(in).requires_grad_(true), w = exact(weights).requires_grad_(true);
    const auto expected = torch::conv2d(from_origin(x, origin, kernel, stride, out), w, torch::Tensor(), stride);
    ASSERT_EQ(expected.sizes(), out.sizes());
    const auto& upstream = trial % 3 ? gradient : out;
    (expected * exact(upstream)).sum().backward();

    const auto sum = torch::ones(weights.sizes(), weights.options().dtype(at::kFloat));
    gpu::conv_weight_gradient(in, origin, upstream, stride, sum);
    EXPECT_LT(relative_error(exact(sum) - 1, w.grad()), summed);
    if (channels > 3) {
      const auto dx = numbers.slab(samples, channels, in.size(2), in.size(3));
      gpu::conv_input_gradient(upstream, origin, weights, dx);
      EXPECT_LT(relative_error(exact(dx), x.grad()), rounded);
    }
    gpu::conv(in, origin, weights, stride, out);
    EXPECT_LT(relative_error(exact(out), expected), rounded);
  }
}

INSTANTIATE_TEST_SUITE_P(Table, GpuConv,
                         testing::Values(Sizes{3, 1, 16, 16}, Sizes{3, 1, 16, 64}, Sizes{3, 1, 64, 16},
                                         Sizes{3, 1, 32, 32}, Sizes{3, 1, 32, 64}, Sizes{3, 1, 64, 64},
                                         Sizes{7, 2, 3, 64}, Sizes{7, 2, 3, 16}, Sizes{3, 1, 3, 16}, Sizes{3, 1, 3, 64},
                                         Sizes{3, 2, 3, 32}, Sizes{3, 2, 3, 64}),
                         [](const auto& row) {
                           const Sizes& s = row.param;
                           return concat(s.kernel, "x", s.kernel, "_stride_", s.stride, "_", s.in, "_to_", s.out);
                         });

// As training calls them: large enough that they are chosen, the whole image and in two tiles.
TEST_P(GpuConv, IsWhatTheKernelOfANodeRuns) {
  const auto [kernel, stride, channels, outputs] = GetParam();
  if (!gpu::conv_pays({kernel, stride, channels, outputs, 400 * 370}, false)) GTEST_SKIP() << "left to cuDNN";
  Graph graph;
  graph.conv(graph.input({channels, 400 * stride, 370 * stride}),
             {.out = outputs, .kernel = kernel, .stride = stride, .pad = kernel / 2}, "conv");
  const Node& node = graph.nodes().back();
  const Parameters parameters(graph, 0, 2, Numbers::options(), 7);
  parameters.refresh();
  const auto made = make_kernel(graph, node, parameters.of(node));
  Numbers numbers(5);
  const Shape in_shape = graph.shape({0});
  const std::vector<Slab> inputs{{numbers.slab(1, channels, in_shape.height, in_shape.width), in_shape.box({0, 1})}};
  const Slab upstream{numbers.slab(1, outputs, node.shape.height, node.shape.width), node.shape.box({0, 1})};
  const auto x = inputs[0].data.to(at::kDouble).contiguous().requires_grad_(true);
  const auto w = parameters.of(node).values[0].to(at::kDouble).contiguous().requires_grad_(true);
  const auto expected = torch::conv2d(x, w, torch::Tensor(), stride, kernel / 2);
  (expected * upstream.data.to(at::kDouble)).sum().backward();

  PassInfo pass{3, 5, 1, {}};
  pass.options = Numbers::options();
  for (const int tiles : {1, 2}) {
    SCOPED_TRACE(concat(tiles, " tiles"));
    parameters.flat_gradients().zero_();
    auto output = torch::full_like(expected, std::nan("")).detach();
    auto input_gradient = torch::zeros_like(x);
    for (int t = 0; t < tiles; ++t) {
      Box tile = upstream.box;
      tile[Axis::width] = {370 * t / tiles, 370 * (t + 1) / tiles};
      const auto shapes = graph.input_shapes(node);
      const std::vector<Slab> seen{narrowed(inputs[0], intersect(node.op->input_box(tile, 0, shapes), inputs[0].box))};
      Saved saved;
      const auto in_box = [&](const torch::Tensor& whole, const Box& box) {
        return whole.narrow(3, box.width().begin, box.width().size())
            .narrow(2, box.height().begin, box.height().size());
      };
      in_box(output, tile).copy_(made->forward({seen, tile, tile, pass, saved}).data);
      BackwardArgs args{seen, {}, {narrowed(upstream, tile)}, {true}, {}, tile, pass, saved};
      made->weight_gradients(args);
      const Slab dx = made->input_gradients(args)[0];
      in_box(input_gradient, dx.box).add_(dx.data);
    }
    EXPECT_LT(relative_error(output, expected), rounded);
    EXPECT_LT(relative_error(input_gradient, x.grad()), 2 * rounded);
    EXPECT_LT(relative_error(parameters.of(node).gradients[0].to(at::kDouble), w.grad()), summed);
  }
}

}  // namespace
}  // namespace tessera
