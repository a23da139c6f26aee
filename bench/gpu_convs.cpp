// The GPU's own convolutions beside cuDNN's, with cuDNN's algorithms tried out, and beside what memory allows: every
// number read once and written once. Says where conv_pays() should say yes.
#include <ATen/Context.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAFunctions.h>
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <functional>

#include "tessera/ops/cuda/gpu.h"

namespace tessera {
namespace {

struct Case {
  std::int64_t size, kernel, stride, in, out;
  bool depthwise = false;
};

// Milliseconds, the median of five rounds.
double time_of(const std::function<void()>& run) {
  constexpr int rounds = 5, each = 10;
  for (int i = 0; i < 3; ++i) run();
  std::array<double, rounds> times;
  for (double& t : times) {
    c10::cuda::device_synchronize();
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < each; ++i) run();
    c10::cuda::device_synchronize();
    t = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count() / each;
  }
  std::sort(times.begin(), times.end());
  return times[rounds / 2];
}

void compare(const Case& c, double terabytes) {
  const auto options = at::TensorOptions(at::kCUDA).dtype(at::kBFloat16);
  const auto image = [&](std::int64_t channels, std::int64_t size) {
    return at::randn({1, size, size, channels}, options).permute({0, 3, 1, 2});
  };
  const at::Tensor x = image(c.in, c.size), y = image(c.out, c.size / c.stride), dx = image(c.in, c.size);
  const at::Tensor w = at::randn({c.out, c.depthwise ? 1 : c.in, c.kernel, c.kernel}, options)
                           .contiguous(at::MemoryFormat::ChannelsLast);
  const at::Tensor sum = at::zeros(w.sizes(), w.options().dtype(at::kFloat));
  const std::array<std::int64_t, 2> stride{c.stride, c.stride}, pad{c.kernel / 2, c.kernel / 2}, one{1, 1}, none{0, 0};
  const std::array<std::int64_t, 1> bias{c.out};
  const Origin origin{-c.kernel / 2, -c.kernel / 2};
  const std::int64_t groups = c.depthwise ? c.in : 1;
  const auto theirs = [&](std::array<bool, 3> what) {
    return at::convolution_backward(y, x, w, at::OptionalIntArrayRef(bias), stride, pad, one, false, none, groups,
                                    what);
  };
  const double floor = static_cast<double>((x.numel() + y.numel()) * 2) / terabytes / 1e9;
  const auto row = [&](const char* pass, const std::function<void()>& ours, const std::function<void()>& cudnn) {
    const double mine = time_of(ours), other = time_of(cudnn);
    fmt::print("{:>5}² {}x{}/{} {:>3} -> {:<4} {:<16}{:>9.3f}{:>9.3f}{:>9.2f}x{:>9.3f}{:>8.1f}x\n", c.size, c.kernel,
               c.kernel, c.stride, c.in, c.out, pass, mine, other, other / mine, floor, mine / floor);
  };
  row(
      "forward",
      [&] { c.depthwise ? gpu::depthwise(x, origin, w, {}, c.stride, y) : gpu::conv(x, origin, w, c.stride, y); },
      [&] { at::convolution(x, w, {}, stride, pad, one, false, none, groups); });
  if (c.in > 3)
    row(
        "input gradient",
        [&] {
          c.depthwise ? gpu::depthwise_input_gradient(y, origin, w, c.stride, dx)
                      : gpu::conv_input_gradient(y, origin, w, dx);
        },
        [&] {
          theirs({true, false, false});
        });
  row(
      "weight gradient",
      [&] {
        c.depthwise ? gpu::depthwise_weight_gradient(x, origin, y, c.stride, sum)
                    : gpu::conv_weight_gradient(x, origin, y, c.stride, sum);
      },
      [&] {
        theirs({false, true, false});
      });
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  CLI::App app{"Own convolutions of one GPU beside cuDNN's"};
  double terabytes = 4.3;
  app.add_option("--bandwidth", terabytes, "of the GPU's memory, TB/s")->capture_default_str();
  bool depthwise = false;
  app.add_flag("--depthwise", depthwise, "only those with a window for each channel");
  CLI11_PARSE(app, argc, argv);
  at::globalContext().setBenchmarkCuDNN(true);
  fmt::print("{:<37}{:>9}{:>9}{:>10}{:>9}{:>9}\n", "convolution", "ours ms", "cuDNN ms", "", "floor ms", "");
  for (const tessera::Case& c : {tessera::Case{2048, 3, 1, 16, 16},
                                 {2048, 3, 1, 16, 32},
                                 {2048, 3, 1, 32, 16},
                                 {2048, 3, 1, 64, 16},
                                 {2048, 3, 1, 32, 32},
                                 {1024, 3, 1, 32, 64},
                                 {1024, 3, 1, 64, 64},
                                 {256, 3, 1, 16, 16},
                                 {256, 3, 1, 32, 32},
                                 {4096, 7, 2, 3, 16},
                                 {4096, 7, 2, 3, 32},
                                 {4096, 7, 2, 3, 64},
                                 {2048, 3, 1, 3, 16},
                                 {2048, 3, 1, 3, 32},
                                 {2048, 3, 1, 3, 64},
                                 {2048, 3, 2, 3, 64},
                                 {1024, 3, 1, 64, 64, true},
                                 {1024, 3, 2, 64, 64, true},
                                 {2048, 3, 1, 32, 32, true},
                                 {256, 3, 1, 256, 256, true},
                                 {512, 5, 2, 144, 144, true},
                                 {512, 5, 1, 96, 96, true},
                                 {128, 5, 1, 240, 240, true},
                                 {512, 7, 1, 96, 96, true},
                                 {128, 7, 1, 384, 384, true}})
    if (c.depthwise || !depthwise) tessera::compare(c, terabytes);
}
