// What the GPU is asked to do, in plain pointers: neither torch nor CUDA is needed to read this. gpu.h says it in
// tensors. Every function queues its work on `stream`, a cudaStream_t, and returns.
#pragma once

#include <cstdint>

namespace tessera::gpu {

enum class Number { float32, float64, bfloat16 };

/// Where the numbers of a slab lie: channels of a pixel and pixels of a row are adjacent, rows may be apart. Null data:
/// there is no such slab.
struct View {
  void* data = nullptr;
  std::int64_t sample_stride = 0, row_stride = 0;  ///< in numbers
};

/// What all slabs of a pass have in common.
struct Field {
  std::uint32_t samples = 0, rows = 0, width = 0;
  std::uint32_t channels = 0;
  Number number = Number::float32;
  bool dense = false;   ///< no slab has gaps between its rows
  bool vector = false;  ///< channels come in aligned groups of 16 bytes, in every slab
  std::uint32_t pixels() const { return samples * rows * width; }
};

/// Sums run in this many blocks; each leaves its share for a second, short kernel to add up.
int reduction_blocks(const Field& field);

// Coefficients and sums are float for float32 and bfloat16, double for float64; what is agreed between ranks, and all
// that follows from it, is double.

/// out = count, then the mean of each channel, then Σ (x - mean)² of each. `partials`: blocks × 2 × channels sums.
void moments(const Field& field, const View& x, void* partials, double* out, void* stream);

/// What a norm makes of the moments.
struct NormJob {
  const double* moments = nullptr;  ///< of `ranks` ranks, `rank_stride` doubles apart, combined in this order
  int ranks = 1;
  std::int64_t rank_stride = 0;
  std::uint32_t channels = 0;
  double epsilon = 0;
  const void *weight = nullptr, *bias = nullptr;  ///< by channel, as are all that follow
  /// What a step adds to the running statistics: `statistics_weight` of the mean and the unbiased variance, `share` of
  /// a count.
  void *mean_sum = nullptr, *variance_sum = nullptr, *count_sum = nullptr;
  double statistics_weight = 0, share = 0;
  void* coefficients = nullptr;  ///< out: mean, scale = weight/deviation, shift = bias
  double* deviation = nullptr;   ///< out: 1/deviation of each channel, then the count
};
void finish_norm(Number number, const NormJob& job, void* stream);

/// scale·(x - mean) + shift; x as it is where there are no coefficients.
struct AffineView {
  View x;
  const void* coefficients = nullptr;  ///< mean, scale, shift, each by channel
};

/// out = Σ terms, or the positive part of it.
struct AffineSumJob {
  AffineView term[2];  ///< the second may be missing
  bool relu = false;
  View out;
  // Where the moments of `out` are wanted, too; see moments().
  void* partials = nullptr;
  double* moments = nullptr;
};
void affine_sum(const Field& field, const AffineSumJob& job, void* stream);

/// g = mask·Σ gradients, and for each of `terms` terms Σ g and Σ g·(x - mean).
struct GradientSumsJob {
  View gradients[2];  ///< the second may be missing
  View output;        ///< where it is there, g is zero where it is not positive
  bool mask_by_term = false;
  AffineView mask;  ///< where mask_by_term, g is zero where this is not positive
  int terms = 0;
  AffineView term[2];
  View g;                    ///< may be missing, and may be one of the gradients
  void* partials = nullptr;  ///< blocks × terms × 2 × channels sums
  double* sums = nullptr;    ///< terms × 2 × channels
};
void gradient_sums(const Field& field, const GradientSumsJob& job, void* stream);

/// What any formula computes of its terms: act(a ∘ b).
struct FormulaView {
  bool product = false;
  int activation = -1;  ///< an ActivationKind; -1: none
  double parameter = 0;
};
struct EvaluateJob {
  FormulaView formula;
  int terms = 1;
  AffineView term[2];
  View out;
};
void evaluate(const Field& field, const EvaluateJob& job, void* stream);

/// The gradient of each term, and Σ g and Σ g·(x - mean) of it.
struct GradientJob {
  FormulaView formula;
  View gradients[2];  ///< the second may be missing
  View output;        ///< where it is there, the derivative is read from it
  int terms = 1;
  AffineView term[2];
  View g[2];                 ///< each may be missing; the first may be one of the gradients
  void* partials = nullptr;  ///< blocks × terms × 2 × channels sums
  double* sums = nullptr;    ///< terms × 2 × channels
};
void gradient(const Field& field, const GradientJob& job, void* stream);

/// Adds a rank's own sums to the norm's gradients, and makes a, b and c of dx = a·g + b·(x - mean) + c from those of
/// all that was normalised together.
struct NormGradientJob {
  std::uint32_t channels = 0;
  const double *own = nullptr, *total = nullptr;  ///< 2 × channels
  const void* coefficients = nullptr;             ///< of the norm
  const double* deviation = nullptr;
  void *weight_gradient = nullptr, *bias_gradient = nullptr;
  void* result = nullptr;  ///< out: a, b, c, each by channel
};
void finish_norm_gradient(Number number, const NormGradientJob& job, void* stream);

struct AffineGradientJob {
  View g;
  AffineView term;
  const void* result = nullptr;  ///< a, b, c
  bool mask = false;             ///< g counts only where the term is positive
  bool statistics = true;        ///< false: b and c count as zero
  View addend;                   ///< may be missing
  View dx;                       ///< may be g or the addend
};
void affine_gradient(const Field& field, const AffineGradientJob& job, void* stream);

/// A convolution in bfloat16 with square windows: out[r, c] = Σ w[i, j] · in[r·stride + top + i, c·stride + left + j],
/// where `in` is zero outside of what is there.
struct ConvJob {
  int kernel = 3, stride = 1;
  int samples = 0, in_channels = 0, out_channels = 0;
  int in_rows = 0, in_columns = 0, out_rows = 0, out_columns = 0;
  int top = 0, left = 0;
  View in, out;
};
struct ConvWeights {
  void* data = nullptr;
  std::int64_t out_stride = 0, in_stride = 0, row_stride = 0, column_stride = 0;  ///< in numbers; may be negative
};
/// 3×3 windows, stride 1; 16, 32 or 64 input channels, a multiple of 16 outputs. `arranged`: room for the weights once
/// more.
void conv_of_few(const ConvJob& job, const ConvWeights& weights, void* arranged, void* stream);
/// Adds to `gradient`, which is float32, what the gradient `out` gives. `partials`: blocks × weights.
int conv_of_few_blocks(const ConvJob& job);
void conv_of_few_weights(const ConvJob& job, float* partials, const ConvWeights& gradient, void* stream);

/// Three input channels; 7×7 windows of stride 2, or 3×3 ones of stride 1 or 2; a multiple of 16 outputs, for the
/// gradient 16, 32 or 64. `arranged`: room for conv_of_image_room(job) numbers.
int conv_of_image_room(const ConvJob& job);
void conv_of_image(const ConvJob& job, const ConvWeights& weights, void* arranged, void* stream);
int conv_of_image_blocks(const ConvJob& job);
void conv_of_image_weights(const ConvJob& job, float* partials, const ConvWeights& gradient, void* stream);

/// A depthwise convolution of any type: channels have a window each, of 3, 5 or 7 pixels on a side, with a stride of 1
/// or 2. Weights are [tap][channel], biases by channel, both as wide as sums.
struct DepthwiseJob {
  int kernel = 3, stride = 1;
  int samples = 0, channels = 0;
  int in_rows = 0, in_columns = 0, out_rows = 0, out_columns = 0;
  int top = 0, left = 0;
  Number number = Number::float32;
  bool vector = false;
  View in, out;
};
void depthwise(const DepthwiseJob& job, const void* weights, const void* bias, void* stream);
/// `in` is written, `out` is the gradient.
void depthwise_input_gradient(const DepthwiseJob& job, const void* weights, void* stream);
/// `partials`: blocks × taps × channels sums.
int depthwise_blocks(const DepthwiseJob& job);
void depthwise_weight_gradient(const DepthwiseJob& job, void* partials, void* stream);

/// An image made of the numbers of its file (data/raw_image.h). The number of channel c of the pixel (y, x) is
/// bytes[origin + y · down + x · across + c]; down and across may be negative.
enum class FileNumber : std::uint8_t { uint8, uint16, float32 };
struct ByteImageJob {
  const void* bytes = nullptr;
  FileNumber of = FileNumber::uint8;
  std::int64_t origin = 0;
  std::int64_t down = 0, across = 0;
  const double* numbers = nullptr;  ///< middle and scale of each channel; then, with colours, offsets and the matrix
  bool colours = false;
  int channels = 0, rows = 0, columns = 0;
  Number number = Number::float32;
  void* out = nullptr;
  std::int64_t channel_stride = 0, row_stride = 0, column_stride = 0;
};
void image_of_bytes(const ByteImageJob& job, void* stream);

/// A window along one side; positions count from the start of the whole value.
struct WindowSide {
  int kernel = 1, stride = 1, pad = 0, pad_end = 0;
  int image = 0;                 ///< length of the input's side
  int in_begin = 0, in_end = 0;  ///< what the input's slab covers
  int out_begin = 0, out_end = 0;
};
struct PoolJob {
  std::uint32_t samples = 0, channels = 0;
  Number number = Number::float32;
  bool vector = false;
  WindowSide height, width;
  View in, out;
  View winners;  ///< max: one byte a number, the tap that won
  bool count_padding = false;
};
/// Of the input's slab everything that falls on the image is seen.
void max_pool(const PoolJob& job, void* stream);
void avg_pool(const PoolJob& job, void* stream);
/// The transposes: `in` is written, `out` is the gradient.
void max_pool_gradient(const PoolJob& job, void* stream);
void avg_pool_gradient(const PoolJob& job, void* stream);

/// out = x/keep where the random number of an element's place is below keep, else 0.
struct DropoutJob {
  View x, out;
  double keep = 1;
  std::uint64_t key = 0;               ///< of the random numbers: see base/random.h
  const std::int64_t* step = nullptr;  ///< their stream; where a recorded kernel finds that of the present step
  // The slab's place in the whole batch.
  std::int64_t first_sample = 0, first_row = 0, first_column = 0;
  std::int64_t image_height = 0, image_width = 0;
};
void dropout(const Field& field, const DropoutJob& job, void* stream);

}  // namespace tessera::gpu
