// The GPU's passes, in tensors: all on one GPU, queued on the calling thread's current stream. A build without CUDA has
// no_gpu.cpp in place of gpu.cpp, and then only built() may be called.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <vector>

#include "tessera/geometry/box.h"
#include "tessera/ops/cpu/pointwise_loops.h"
#include "tessera/ops/slab.h"

namespace tessera {
struct Windows;
struct Shape;
}  // namespace tessera

namespace tessera::gpu {

/// Whether this program was built with CUDA.
bool built();
/// Whether the calling thread's current GPU computes in bfloat16.
bool has_bfloat16();
/// Which GPU of all in the world the current one is: its 16 bytes are its own.
std::array<std::uint8_t, 16> identity();

/// Count, means, Σ (x - mean)²: 1 + 2·channels doubles.
at::Tensor moments(const at::Tensor& x);

struct Norm {
  double epsilon = 0;
  at::Tensor weight, bias;
  at::Tensor mean_sum, variance_sum, count_sum;  ///< added to
  double statistics_weight = 0, share = 0;
};
struct Normed {
  at::Tensor coefficients;  ///< [3, channels]: mean, scale, shift
  at::Tensor deviation;     ///< channels + 1 doubles: 1/deviation, count
};
/// `moments` is [ranks, 1 + 2·channels].
Normed finish_norm(const at::Tensor& moments, const Norm& norm);

struct Affine {
  at::Tensor x;
  at::Tensor coefficients;  ///< undefined: x as it is
};
/// out = formula(terms). One or two terms.
void evaluate(const std::vector<Affine>& terms, const loops::Formula& formula, const at::Tensor& out);
/// The same, and returns moments(out).
at::Tensor evaluate_with_moments(const std::vector<Affine>& terms, const loops::Formula& formula,
                                 const at::Tensor& out);

/// As in pointwise_loops.h.
struct Derivative {
  loops::Formula formula;
  at::Tensor output;
  std::vector<const Affine*> terms;
};
/// [summed, 2, channels] doubles; as in pointwise_loops.h.
at::Tensor gradient_sums(const std::vector<at::Tensor>& gradients, const Derivative& derivative,
                         const std::vector<const Affine*>& summed, const std::array<at::Tensor, 2>& g);

/// `own` and `total` are [2, channels]. Returns a, b and c of the input's gradient.
at::Tensor finish_norm_gradient(const at::Tensor& own, const at::Tensor& total, const Normed& normed,
                                const at::Tensor& weight_gradient, const at::Tensor& bias_gradient);

struct GradientOptions {
  bool mask = false;
  bool statistics = true;
  at::Tensor addend = {};
};
void affine_gradient(const at::Tensor& g, const Affine& term, const at::Tensor& abc, const GradientOptions& options,
                     const at::Tensor& dx);

/// Own convolutions, all in bfloat16, for square windows: out = weights ⋆ in, where `in` is zero outside of what is
/// there. Weights are [out channels, in channels, kernel, kernel], in any order of dimensions.
struct ConvSizes {
  std::int64_t kernel = 3, stride = 1;
  std::int64_t in_channels = 0, out_channels = 0;
  std::int64_t pixels = 0;  ///< of the output
};
/// Whether there is a kernel that is faster than cuDNN's: for a convolution and the gradient of its weights, or for
/// that of its input.
bool conv_pays(const ConvSizes& sizes, bool input_gradient);
void conv(const at::Tensor& in, Origin origin, const at::Tensor& weights, std::int64_t stride, const at::Tensor& out);
/// The transpose of that in `in`, for a stride of 1; the origin is forward's.
void conv_input_gradient(const at::Tensor& gradient, Origin origin, const at::Tensor& weights, const at::Tensor& out);
/// Adds to `sum`, which is float32 and has the sizes of the weights.
void conv_weight_gradient(const at::Tensor& in, Origin origin, const at::Tensor& gradient, std::int64_t stride,
                          const at::Tensor& sum);

/// finish() of data/raw_image.h: an image out of a box of the numbers of its file, [rows, columns, channels], as bytes.
struct ByteImage {
  int number_bytes = 1;  ///< 1: uint8, 2: uint16, 4: float32
  bool transpose = false, flip_rows = false, flip_columns = false;
  bool colours = false;
  std::vector<double> numbers;  ///< as in gpu_kernels.h
};
void image_of_bytes(const at::Tensor& bytes, const ByteImage& how, const at::Tensor& out);

/// Depthwise convolutions, of any type; weights are [channels, 1, kernel, kernel], in any order of dimensions. The bias
/// may be undefined.
bool depthwise_can(std::int64_t kernel, std::int64_t stride);
void depthwise(const at::Tensor& in, Origin origin, const at::Tensor& weights, const at::Tensor& bias,
               std::int64_t stride, const at::Tensor& out);
/// The origin is forward's.
void depthwise_input_gradient(const at::Tensor& gradient, Origin origin, const at::Tensor& weights, std::int64_t stride,
                              const at::Tensor& out);
/// Adds to `sum`, which has the sizes of the weights.
void depthwise_weight_gradient(const at::Tensor& in, Origin origin, const at::Tensor& gradient, std::int64_t stride,
                               const at::Tensor& sum);

/// One side of a pool: the slab's data and the box that it covers.
struct PoolSide {
  at::Tensor data;
  Box box;
};
void max_pool(const Windows& windows, const Shape& image, const PoolSide& in, const PoolSide& out,
              const at::Tensor& winners);
void max_pool_gradient(const Windows& windows, const Shape& image, const PoolSide& in, const PoolSide& out,
                       const at::Tensor& winners);
void avg_pool(const Windows& windows, const Shape& image, bool count_padding, const PoolSide& in, const PoolSide& out);
void avg_pool_gradient(const Windows& windows, const Shape& image, bool count_padding, const PoolSide& in,
                       const PoolSide& out);

struct DropoutPlace {
  std::uint64_t key = 0;
  at::Tensor step;  ///< one int64, on the GPU: the stream of the random numbers
  double keep = 1;
  std::int64_t first_sample = 0, first_row = 0, first_column = 0;
};
void dropout(const at::Tensor& x, const Shape& image, const DropoutPlace& place, const at::Tensor& out);

}  // namespace tessera::gpu
