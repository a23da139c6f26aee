#include "tessera/ops/cpu/few.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "tessera/ops/cpu/isa/product.h"
#include "tessera/ops/cpu/scratch.h"

namespace tessera {
namespace {

// Rows of weights that stay in a core's second cache.
constexpr std::int64_t rows_together = 48;

}  // namespace

bool few_can(std::int64_t taps_and_channels) { return taps_and_channels % product_kernels().lane == 0; }

std::int64_t few_forward_scratch(std::int64_t pixels, std::int64_t taps_and_channels) {
  return whole_vectors(pixels) * (taps_and_channels + at::get_num_threads() * rows_together);
}

at::Tensor few_forward(const at::Tensor& windows, const at::Tensor& weights) {
  const std::int64_t pixels = windows.size(0), depth = windows.size(1), out = weights.size(0);
  const std::int64_t whole = whole_vectors(pixels);
  // The other way round, so that the weights are the left factor, which needs no panels: outputsᵀ = weights · windowsᵀ.
  at::Tensor panels = at::empty({whole * depth}, windows.options());
  if (whole != pixels) panels.zero_();
  product_kernels().to_panels(windows.data_ptr<float>(), {depth, pixels, 1, depth}, panels.data_ptr<float>(), depth, 0);
  const at::Tensor y = at::empty({pixels, out}, windows.options());
  const at::Tensor memory = at::empty({at::get_num_threads(), rows_together * whole}, windows.options());
  at::parallel_for(0, (out + rows_together - 1) / rows_together, 1, [&](std::int64_t begin, std::int64_t end) {
    // Torch 2 checks the type whenever it is asked for the data.
    float* const block = memory.data_ptr<float>() + at::get_thread_num() * rows_together * whole;
    float* const outputs = y.data_ptr<float>();
    const float *const left = weights.data_ptr<float>(), *const right = panels.data_ptr<float>();
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t first = i * rows_together, rows = std::min(rows_together, out - first);
      product_kernels().multiply_panels(left + first * depth, right, block, {rows, whole, depth}, {depth, 1, 0, whole});
      for (std::int64_t p = 0; p < pixels; ++p)
        for (std::int64_t r = 0; r < rows; ++r) outputs[p * out + first + r] = block[r * whole + p];
    }
  });
  return y;
}

at::Tensor few_input_gradient(const at::Tensor& gradient, const at::Tensor& weights) {
  const std::int64_t pixels = gradient.size(0), out = gradient.size(1), depth = weights.size(1);
  const at::Tensor windows = at::empty({pixels, depth}, gradient.options());
  // Some rows of the weights at a time, from left to right. Threads have columns of their own.
  constexpr std::int64_t columns_together = 256;
  at::parallel_for(0, (depth + columns_together - 1) / columns_together, 1, [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t first = begin * columns_together, columns = std::min(end * columns_together, depth) - first;
    for (std::int64_t row = 0; row < out; row += rows_together) {
      const auto multiply = row == 0 ? product_kernels().multiply : product_kernels().add;
      multiply(gradient.data_ptr<float>() + row, weights.data_ptr<float>() + row * depth + first,
               windows.data_ptr<float>() + first, {pixels, columns, std::min(rows_together, out - row)},
               {out, 1, depth, depth});
    }
  });
  return windows;
}

void few_weight_gradient(const at::Tensor& gradient, const at::Tensor& windows, const at::Tensor& sum) {
  const std::int64_t pixels = gradient.size(0), out = gradient.size(1), depth = windows.size(1);
  at::parallel_for(0, (out + rows_together - 1) / rows_together, 1, [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t first = begin * rows_together, rows = std::min(end * rows_together, out) - first;
    product_kernels().add(gradient.data_ptr<float>() + first, windows.data_ptr<float>(),
                          sum.data_ptr<float>() + first * depth, {rows, depth, pixels}, {1, out, depth, depth});
  });
}

}  // namespace tessera
