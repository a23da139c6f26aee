// The GPU's own convolutions against torch's in double, on slabs with gaps and windows that begin anywhere.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <optional>

#include "support/compare.h"
#include "support/device.h"
#include "support/kernels.h"
#include "tessera/ops/cuda/gpu.h"
#include "tessera/runtime/parameters.h"
#include "unit/ops/parts.h"

namespace tessera {
namespace {

using test::relative_error;

// What rounding to bfloat16 may do to a result; sums in float32 are exact beside that.
constexpr double rounded = 4e-3, summed = 1e-5;

at::TensorOptions options() { return at::TensorOptions(test::device()).dtype(at::kBFloat16); }

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
  Numbers numbers(static_cast<unsigned>(kernel + 10 * stride + channels + outputs), options());
  constexpr int trials = 12;
  for (int trial = 0; trial < trials; ++trial) {
    // The last has so many tiles that every block of a weight gradient takes several, one after the other.
    const bool large = trial == trials - 1;
    const std::int64_t samples = large ? 1 : numbers.pick(1, 2);
    const Part in = large ? numbers.part(1, channels, 701 * stride, 690 * stride)
                          : numbers.part(samples, channels, numbers.pick(5, 70), numbers.pick(5, 90));
    const Origin origin{numbers.pick(-3, 2), numbers.pick(-3, 2)};
    const Part out = large ? numbers.part(1, outputs, 701, 690)
                           : numbers.part(samples, outputs, numbers.pick(1, 40), numbers.pick(1, 70));
    const auto upstream = trial % 3 ? out.data.clone() : out.data;  // without gaps, at times
    auto weights = torch::randn({outputs, channels, kernel, kernel}, options());
    if (trial % 2) weights = weights.contiguous(at::MemoryFormat::ChannelsLast);
    SCOPED_TRACE(
        concat("in ", in.data.sizes(), ", out ", out.data.sizes(), ", from ", origin.row, ", ", origin.column));

    const auto x = exact(in.data).requires_grad_(true), w = exact(weights).requires_grad_(true);
    const auto expected = torch::conv2d(from_origin(x, origin, kernel, stride, out.data), w, torch::Tensor(), stride);
    ASSERT_EQ(expected.sizes(), out.data.sizes());
    (expected * exact(upstream)).sum().backward();

    const auto sum = torch::ones(weights.sizes(), weights.options().dtype(at::kFloat));
    gpu::conv_weight_gradient(in.data, origin, upstream, stride, sum);
    EXPECT_LT(relative_error(exact(sum) - 1, w.grad()), summed);
    if (channels > 3) {
      const Part dx = numbers.part(samples, channels, in.data.size(2), in.data.size(3));
      gpu::conv_input_gradient(upstream, origin, weights, dx.data);
      EXPECT_LT(relative_error(exact(dx.data), x.grad()), rounded);
      dx.expect_surroundings_untouched();
    }
    gpu::conv(in.data, origin, weights, stride, out.data);
    EXPECT_LT(relative_error(exact(out.data), expected), rounded);
    out.expect_surroundings_untouched();
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

// One convolution as training runs it, and the same in double.
class Trained {
 public:
  Trained(const Shape& in, const ConvOptions& conv) {
    graph_.conv(graph_.input(in), conv, "conv");
    parameters_.emplace(graph_, 0, 2, options(), 7);
    kernel_.emplace(graph_, *parameters_);
    Numbers numbers(5, options());
    input = {numbers.part(1, in.channels, in.height, in.width).data, in.box({0, 1})};
    const Shape& out = node().shape;
    upstream = {numbers.part(1, out.channels, out.height, out.width).data, out.box({0, 1})};
    x = input.data.to(at::kDouble).contiguous().requires_grad_(true);
    w = weights().to(at::kDouble).contiguous().requires_grad_(true);
    pass.options = options();
  }
  const Node& node() const { return graph_.nodes().back(); }
  Kernel& kernel() const { return **kernel_; }
  at::Tensor weights() const { return parameters_->of(node()).values[0]; }
  at::Tensor bias() const { return parameters_->of(node()).values[1].to(at::kDouble); }
  void backward(const torch::Tensor& expected) const { (expected * upstream.data.to(at::kDouble)).sum().backward(); }

  // In tiles side by side. Each finds its input in a frame that holds the padding, and leaves its output in one.
  void compare(const torch::Tensor& expected, int tiles, double allowed_in_weights) {
    SCOPED_TRACE(concat(tiles, " tiles"));
    parameters_->flat_gradients().zero_();
    auto output = torch::full_like(expected, std::nan("")).detach();
    auto input_gradient = torch::zeros_like(x);
    const auto in_box = [](const torch::Tensor& whole, const Box& box) {
      return whole.narrow(3, box.width().begin, box.width().size()).narrow(2, box.height().begin, box.height().size());
    };
    const auto shapes = graph_.input_shapes(node());
    const std::int64_t width = node().shape.width;
    for (int t = 0; t < tiles; ++t) {
      Box tile = upstream.box;
      tile[Axis::width] = {width * t / tiles, width * (t + 1) / tiles};
      const Box frame = node().op->input_box(tile, 0, shapes), inside = intersect(frame, input.box);
      Slab seen = empty_slab(tiles == 1 ? inside : frame, input.data.size(1), options());
      seen.data.zero_();
      narrowed(seen, inside).data.copy_(narrowed(input, inside).data);
      Slab into = empty_slab(tile, output.size(1), options());
      Saved saved;
      const std::vector<Slab> inputs{seen};
      const Slab made = kernel().forward({inputs, tile, tile, pass, saved, tiles == 1 ? Slab{} : into});
      in_box(output, tile).copy_(made.data);
      BackwardArgs args{inputs, {}, {narrowed(upstream, tile)}, {true}, {}, tile, pass, saved};
      kernel().weight_gradients(args);
      const Slab dx = kernel().input_gradients(args)[0];
      const Box wanted = intersect(dx.box, input.box);
      in_box(input_gradient, wanted).add_(narrowed(dx, wanted).data);
    }
    EXPECT_LT(relative_error(output, expected), rounded);
    EXPECT_LT(relative_error(input_gradient, x.grad()), 2 * rounded);
    EXPECT_LT(relative_error(parameters_->of(node()).gradients[0].to(at::kDouble), w.grad()), allowed_in_weights);
  }

 private:
  Graph graph_;
  std::optional<Parameters> parameters_;
  std::optional<test::KernelOf> kernel_;

 public:
  Slab input, upstream;
  torch::Tensor x, w;
  PassInfo pass{3, 5, 1, {}};
};

// Large enough that they are chosen.
TEST_P(GpuConv, IsWhatTheKernelOfANodeRuns) {
  const auto [kernel, stride, channels, outputs] = GetParam();
  if (!gpu::conv_pays({kernel, stride, channels, outputs, 400 * 370}, false)) GTEST_SKIP() << "left to cuDNN";
  Trained conv({channels, 400 * stride, 370 * stride},
               {.out = outputs, .kernel = kernel, .stride = stride, .pad = kernel / 2});
  const auto expected = torch::conv2d(conv.x, conv.w, torch::Tensor(), stride, kernel / 2);
  conv.backward(expected);
  conv.compare(expected, 1, summed);
  conv.compare(expected, 2, summed);
  // Not cuDNN's, which rounds otherwise.
  const std::vector<Slab> inputs{conv.input};
  Saved saved;
  const Box& box = conv.upstream.box;
  const auto own = torch::empty_like(conv.upstream.data.contiguous(at::MemoryFormat::ChannelsLast));
  gpu::conv(conv.input.data, {-kernel / 2, -kernel / 2}, conv.weights(), stride, own);
  EXPECT_TRUE(torch::equal(conv.kernel().forward({inputs, box, box, conv.pass, saved}).data, own));
}

// What differs in one thing from a convolution that has a kernel of its own.
TEST(GpuConvs, OthersAreLeftToCudnn) {
  if (test::device() != at::kCUDA) GTEST_SKIP() << "for GPUs: set TESSERA_TEST_DEVICE=cuda";
  const ConvOptions usual{.out = 16, .kernel = 3, .pad = 1};
  std::vector<ConvOptions> others(6, usual);
  others[0].bias = true;
  others[1].groups = 2;
  others[2].dilation = others[2].pad = 2;
  others[3].stride = 2;
  others[4].kernel = {3, 1};
  others[4].pad = {1, 0};
  others[5].out = 24;
  for (const ConvOptions& o : others) {
    Trained conv({16, 530, 520}, o);
    SCOPED_TRACE(concat("kernel ", o.kernel.height, "x", o.kernel.width, ", stride ", o.stride.height, ", dilation ",
                        o.dilation.height, ", ", o.groups, " groups, to ", o.out));
    const auto expected = torch::conv2d(conv.x, conv.w, o.bias ? conv.bias() : torch::Tensor(),
                                        torch::IntArrayRef{o.stride.height, o.stride.width},
                                        torch::IntArrayRef{o.pad.height, o.pad.width},
                                        torch::IntArrayRef{o.dilation.height, o.dilation.width}, o.groups);
    conv.backward(expected);
    conv.compare(expected, 1, rounded);
  }
}

// Padding that is not the same on all sides is only another origin.
TEST(GpuConvs, PaddingMayDifferOnEachSide) {
  if (test::device() != at::kCUDA) GTEST_SKIP() << "for GPUs: set TESSERA_TEST_DEVICE=cuda";
  Trained conv({16, 401, 371}, {.out = 16, .kernel = 3, .pad = {0, 2}, .pad_end = Pair{2, 0}});
  const auto expected = torch::conv2d(torch::constant_pad_nd(conv.x, {2, 0, 0, 2}, 0), conv.w);
  conv.backward(expected);
  conv.compare(expected, 1, summed);
  conv.compare(expected, 2, summed);
}

}  // namespace
}  // namespace tessera
