// Tensors for tests of own kernels: on slabs with gaps, with windows that begin anywhere.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <random>

#include "tessera/ops/slab.h"

namespace tessera {

/// On the CPU, so that compute-sanitizer has nothing else to look at.
inline at::Tensor exact(const at::Tensor& t) { return t.cpu().to(at::kDouble).contiguous(); }

/// Random numbers, channels-last, a part of something larger that is full of NaNs.
class Part {
 public:
  Part(std::int64_t samples, std::int64_t channels, std::int64_t rows, std::int64_t columns, std::int64_t above,
       std::int64_t left, const at::TensorOptions& options)
      : whole_(torch::full({samples, rows + above + 1, columns + left + 2, channels}, std::nan(""), options)
                   .permute({0, 3, 1, 2})),
        data(whole_.narrow(2, above, rows).narrow(3, left, columns)) {
    data.copy_(torch::randn(data.sizes(), options));
  }
  void expect_surroundings_untouched() const {
    const auto around = whole_.numel() - data.numel();
    data.zero_();
    EXPECT_EQ(whole_.isnan().sum().item<std::int64_t>(), around);
  }

 private:
  at::Tensor whole_;

 public:
  at::Tensor data;
};

class Numbers {
 public:
  Numbers(unsigned seed, const at::TensorOptions& options) : random_(seed), options_(options) {
    torch::manual_seed(seed);
  }
  std::int64_t pick(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random_);
  }
  Part part(std::int64_t samples, std::int64_t channels, std::int64_t rows, std::int64_t columns) {
    const std::int64_t above = pick(0, 2), left = pick(0, 3);
    return {samples, channels, rows, columns, above, left, options_};
  }

 private:
  std::mt19937 random_;
  at::TensorOptions options_;
};

/// What windows that begin at `origin` see, so that the first begins at 0.
inline torch::Tensor from_origin(const torch::Tensor& in, Origin origin, std::int64_t kernel, std::int64_t stride,
                                 const at::Tensor& out) {
  const auto end = [&](int axis, std::int64_t begin) {
    return begin + (out.size(axis) - 1) * stride + kernel - in.size(axis);
  };
  return torch::constant_pad_nd(in, {-origin.column, end(3, origin.column), -origin.row, end(2, origin.row)}, 0);
}

}  // namespace tessera
