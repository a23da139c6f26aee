#include "tessera/ops/cuda/gpu.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <cstring>
#include <limits>

#include "tessera/base/error.h"
#include "tessera/graph/operations/windowed.h"
#include "tessera/ops/cuda/gpu_kernels.h"
#include "tessera/ops/slab.h"

namespace tessera::gpu {
namespace {

Number number_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return Number::float32;
    case at::kDouble:
      return Number::float64;
    case at::kBFloat16:
      return Number::bfloat16;
    default:
      throw Error(concat("no GPU kernel for numbers of dtype ", dtype));
  }
}

void* current_stream() { return c10::cuda::getCurrentCUDAStream().stream(); }

View view_of(const at::Tensor& t) {
  if (!t.defined()) return {};
  const auto channels = t.size(1), width = t.size(3);
  ensure((channels == 1 || t.stride(1) == 1) && (width == 1 || t.stride(3) == channels), "a tensor of sizes ",
         t.sizes(), " and strides ", t.strides(), " is not channels-last");
  return {t.data_ptr(), t.stride(0), t.stride(2)};
}

bool has_gaps(const at::Tensor& t) {
  const auto row = t.size(1) * t.size(3);
  return (t.size(2) != 1 && t.stride(2) != row) || (t.size(0) != 1 && t.stride(0) != t.size(2) * row);
}

// Whether a thread may take 16 bytes at a time, whichever pixel it is at.
bool in_groups(const at::Tensor& t, std::int64_t count) {
  const auto bytes = static_cast<std::uintptr_t>(count * static_cast<std::int64_t>(t.element_size()));
  const auto whole = [&](std::int64_t dim) { return t.size(dim) == 1 || t.stride(dim) % count == 0; };
  return t.size(1) % count == 0 && whole(0) && whole(2) && reinterpret_cast<std::uintptr_t>(t.data_ptr()) % bytes == 0;
}

std::uint32_t small(std::int64_t n) {
  ensure(0 <= n && n <= std::numeric_limits<std::uint32_t>::max(), n, " positions are too many for a GPU kernel");
  return static_cast<std::uint32_t>(n);
}

// What the slabs of a pass have in common; the first is defined.
template <class... Slabs>
Field field_of(const at::Tensor& first, const Slabs&... others) {
  Field f{small(first.size(0)), small(first.size(2)), small(first.size(3)), small(first.size(1)),
          number_of(first.scalar_type())};
  small(first.size(0) * first.size(2) * first.size(3));
  f.dense = f.vector = true;
  const std::int64_t count = 16 / static_cast<std::int64_t>(first.element_size());
  const auto look = [&](const at::Tensor& t) {
    if (!t.defined()) return;
    ensure(t.sizes() == first.sizes() && t.scalar_type() == first.scalar_type() && t.device() == first.device(),
           "slabs of one pass differ: ", first.sizes(), ' ', first.scalar_type(), " and ", t.sizes(), ' ',
           t.scalar_type());
    f.dense = f.dense && !has_gaps(t);
    f.vector = f.vector && in_groups(t, count);
  };
  look(first);
  (look(others), ...);
  return f;
}

AffineView view_of(const Affine& a) {
  return {view_of(a.x), a.coefficients.defined() ? a.coefficients.data_ptr() : nullptr};
}

at::TensorOptions doubles(const at::Tensor& like) { return like.options().dtype(at::kDouble); }
at::TensorOptions sums(const at::Tensor& like) { return like.options().dtype(wide_dtype(like.scalar_type())); }

WindowSide side_of(const Window& w, std::int64_t image, const Interval& in, const Interval& out) {
  const auto i = [](std::int64_t n) { return static_cast<int>(n); };
  return {i(w.kernel), i(w.stride), i(w.pad_begin), i(w.pad_end), i(image),
          i(in.begin), i(in.end),   i(out.begin),   i(out.end)};
}

PoolJob pool_job(const Windows& windows, const Shape& image, const PoolSide& in, const PoolSide& out,
                 const at::Tensor& winners) {
  PoolJob job;
  job.samples = small(out.data.size(0));
  job.channels = small(out.data.size(1));
  job.number = number_of(out.data.scalar_type());
  const std::int64_t count = 16 / static_cast<std::int64_t>(out.data.element_size());
  job.vector =
      in_groups(in.data, count) && in_groups(out.data, count) && (!winners.defined() || in_groups(winners, count));
  job.height = side_of(windows.height, image.height, in.box.height(), out.box.height());
  job.width = side_of(windows.width, image.width, in.box.width(), out.box.width());
  job.in = view_of(in.data);
  job.out = view_of(out.data);
  job.winners = view_of(winners);
  return job;
}

constexpr std::int64_t image_channels = 3;

// `weights`: or what their gradient is added to.
ConvJob conv_job(const at::Tensor& in, Origin origin, const at::Tensor& weights, std::int64_t stride,
                 const at::Tensor& out) {
  const std::int64_t kernel = weights.size(2), channels = in.size(1);
  const auto fits = [](const at::Tensor& t) { return t.size(1) % 16 == 0 && in_groups(t, 8); };
  ensure(in.scalar_type() == at::kBFloat16 && out.scalar_type() == at::kBFloat16 && in.size(0) == out.size(0) &&
             in.device() == out.device() && in.device() == weights.device() && kernel == weights.size(3) &&
             weights.numel() == channels * out.size(1) * kernel * kernel && fits(out) &&
             (channels == image_channels || fits(in)),
         "a convolution of ", in.scalar_type(), ' ', in.sizes(), " by ", weights.sizes(), " to ", out.scalar_type(),
         ' ', out.sizes(), " is not for this kernel");
  const auto i = [](std::int64_t n) { return static_cast<int>(n); };
  ConvJob job;
  job.kernel = i(kernel);
  job.stride = i(stride);
  job.samples = i(in.size(0));
  job.in_channels = i(in.size(1));
  job.out_channels = i(out.size(1));
  job.in_rows = i(in.size(2));
  job.in_columns = i(in.size(3));
  job.out_rows = i(out.size(2));
  job.out_columns = i(out.size(3));
  job.top = i(origin.row);
  job.left = i(origin.column);
  job.in = view_of(in);
  job.out = view_of(out);
  return job;
}

ConvWeights weights_of(const at::Tensor& w) {
  return {w.data_ptr(), w.stride(0), w.stride(1), w.stride(2), w.stride(3)};
}

DepthwiseJob depthwise_job(const at::Tensor& in, Origin origin, std::int64_t kernel, std::int64_t stride,
                           const at::Tensor& out) {
  ensure(in.scalar_type() == out.scalar_type() && in.size(0) == out.size(0) && in.size(1) == out.size(1) &&
             in.device() == out.device(),
         "a depthwise convolution of ", in.scalar_type(), ' ', in.sizes(), " to ", out.scalar_type(), ' ', out.sizes());
  const auto i = [](std::int64_t n) { return static_cast<int>(n); };
  const std::int64_t count = 16 / static_cast<std::int64_t>(in.element_size());
  return {i(kernel),
          i(stride),
          i(in.size(0)),
          i(in.size(1)),
          i(in.size(2)),
          i(in.size(3)),
          i(out.size(2)),
          i(out.size(3)),
          i(origin.row),
          i(origin.column),
          number_of(in.scalar_type()),
          in_groups(in, count) && in_groups(out, count),
          view_of(in),
          view_of(out)};
}
// [tap][channel], as wide as sums.
at::Tensor taps_of(const at::Tensor& weights) {
  return weights.select(1, 0).permute({1, 2, 0}).to(wide_dtype(weights.scalar_type())).contiguous();
}

AffineSumJob sum_job(const std::vector<Affine>& terms, bool relu, const at::Tensor& out) {
  AffineSumJob job;
  for (std::size_t t = 0; t < terms.size(); ++t) job.term[t] = view_of(terms[t]);
  job.relu = relu;
  job.out = view_of(out);
  return job;
}

FormulaView view_of(const loops::Formula& f) {
  return {f.combine == Combine::product, f.activation ? static_cast<int>(f.activation->kind) : -1,
          f.activation ? f.activation->parameter : 0};
}

// Sums that are left as they are, or cut off below zero.
at::Tensor sums_of_simple(const std::vector<at::Tensor>& gradients, const Derivative& d,
                          const std::vector<const Affine*>& terms, const at::Tensor& g) {
  const at::Tensor none;
  const auto count = static_cast<std::int64_t>(terms.size()), channels = gradients[0].size(1);
  const Affine* const mask = d.formula.is_relu() && !d.output.defined() ? d.terms[0] : nullptr;
  const Field field = field_of(gradients[0], gradients.back(), d.output, mask ? mask->x : none,
                               count > 0 ? terms.front()->x : none, count > 0 ? terms.back()->x : none, g);
  at::Tensor out = at::empty({count, 2, channels}, doubles(gradients[0]));
  const at::Tensor partials =
      at::empty({count > 0 ? reduction_blocks(field) : 0, count, 2, channels}, sums(gradients[0]));
  GradientSumsJob job;
  job.gradients[0] = view_of(gradients[0]);
  if (gradients.size() > 1) job.gradients[1] = view_of(gradients[1]);
  job.output = view_of(d.output);
  job.mask_by_term = mask != nullptr;
  if (mask) job.mask = view_of(*mask);
  job.terms = static_cast<int>(count);
  for (std::size_t t = 0; t < terms.size(); ++t) job.term[t] = view_of(*terms[t]);
  job.g = view_of(g);
  job.partials = count > 0 ? partials.data_ptr() : nullptr;
  job.sums = count > 0 ? out.data_ptr<double>() : nullptr;
  gradient_sums(field, job, current_stream());
  return out;
}

// One kernel takes the sums of all terms; those that were asked for are picked.
at::Tensor sums_of_any(const std::vector<at::Tensor>& gradients, const Derivative& d,
                       const std::vector<const Affine*>& terms, const std::array<at::Tensor, 2>& g) {
  // Where the derivative is read from the output, a term that nobody asks for is not there: any slab will do for it.
  const Affine nothing{gradients[0], {}};
  const std::vector<const Affine*> all = d.terms.empty() ? std::vector<const Affine*>{&nothing} : d.terms;
  const std::int64_t channels = gradients[0].size(1), count = static_cast<std::int64_t>(all.size());
  const Field field = field_of(gradients[0], gradients.back(), d.output, all.front()->x, all.back()->x, g[0], g[1]);
  at::Tensor out = at::empty({count, 2, channels}, doubles(gradients[0]));
  const at::Tensor partials = at::empty({reduction_blocks(field), count, 2, channels}, sums(gradients[0]));
  GradientJob job;
  job.formula = view_of(d.formula);
  job.gradients[0] = view_of(gradients[0]);
  if (gradients.size() > 1) job.gradients[1] = view_of(gradients[1]);
  job.output = view_of(d.output);
  job.terms = static_cast<int>(count);
  for (std::size_t t = 0; t < all.size(); ++t) job.term[t] = view_of(*all[t]);
  for (std::size_t t = 0; t < g.size(); ++t) job.g[t] = view_of(g[t]);
  job.partials = partials.data_ptr();
  job.sums = out.data_ptr<double>();
  gradient(field, job, current_stream());
  if (terms.size() == all.size() || terms.empty()) return out;
  return out.narrow(0, terms[0] == all[0] ? 0 : 1, 1);
}

}  // namespace

bool built() { return true; }

bool has_bfloat16() {
  int device = 0, major = 0;
  return cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess && major >= 8;
}

std::array<std::uint8_t, 16> identity() {
  std::array<std::uint8_t, 16> bytes{};
  int device = 0;
  cudaDeviceProp properties{};
  const bool known =
      cudaGetDevice(&device) == cudaSuccess && cudaGetDeviceProperties(&properties, device) == cudaSuccess;
  ensure(known && sizeof properties.uuid.bytes == bytes.size(), "the GPU does not say which one it is");
  std::memcpy(bytes.data(), properties.uuid.bytes, bytes.size());
  return bytes;
}

at::Tensor moments(const at::Tensor& x) {
  const c10::cuda::CUDAGuard guard(x.device());
  const std::int64_t channels = x.size(1);
  at::Tensor out = at::empty({1 + 2 * channels}, doubles(x));
  if (x.numel() == 0) return out.zero_();
  const Field field = field_of(x);
  const at::Tensor partials = at::empty({reduction_blocks(field), 2, channels}, sums(x));
  moments(field, view_of(x), partials.data_ptr(), out.data_ptr<double>(), current_stream());
  return out;
}

Normed finish_norm(const at::Tensor& all, const Norm& norm) {
  const c10::cuda::CUDAGuard guard(all.device());
  const std::int64_t channels = norm.weight.size(0);
  Normed out{at::empty({3, channels}, norm.weight.options()), at::empty({channels + 1}, all.options())};
  NormJob job;
  job.moments = all.data_ptr<double>();
  job.ranks = static_cast<int>(all.size(0));
  job.rank_stride = all.stride(0);
  job.channels = small(channels);
  job.epsilon = norm.epsilon;
  job.weight = norm.weight.data_ptr();
  job.bias = norm.bias.data_ptr();
  job.mean_sum = norm.mean_sum.data_ptr();
  job.variance_sum = norm.variance_sum.data_ptr();
  job.count_sum = norm.count_sum.data_ptr();
  job.statistics_weight = norm.statistics_weight;
  job.share = norm.share;
  job.coefficients = out.coefficients.data_ptr();
  job.deviation = out.deviation.data_ptr<double>();
  finish_norm(number_of(norm.weight.scalar_type()), job, current_stream());
  return out;
}

void evaluate(const std::vector<Affine>& terms, const loops::Formula& formula, const at::Tensor& out) {
  if (out.numel() == 0) return;
  const c10::cuda::CUDAGuard guard(out.device());
  const Field field = field_of(out, terms.front().x, terms.back().x);
  if (formula.simple()) return affine_sum(field, sum_job(terms, formula.is_relu(), out), current_stream());
  EvaluateJob job;
  job.formula = view_of(formula);
  job.terms = static_cast<int>(terms.size());
  for (std::size_t t = 0; t < terms.size(); ++t) job.term[t] = view_of(terms[t]);
  job.out = view_of(out);
  evaluate(field, job, current_stream());
}

at::Tensor evaluate_with_moments(const std::vector<Affine>& terms, const loops::Formula& formula,
                                 const at::Tensor& out) {
  if (!formula.simple()) {
    evaluate(terms, formula, out);
    return moments(out);
  }
  const c10::cuda::CUDAGuard guard(out.device());
  at::Tensor found = at::empty({1 + 2 * out.size(1)}, doubles(out));
  if (out.numel() == 0) return found.zero_();
  const Field field = field_of(out, terms.front().x, terms.back().x);
  const at::Tensor partials = at::empty({reduction_blocks(field), 2, out.size(1)}, sums(out));
  AffineSumJob job = sum_job(terms, formula.is_relu(), out);
  job.partials = partials.data_ptr();
  job.moments = found.data_ptr<double>();
  affine_sum(field, job, current_stream());
  return found;
}

at::Tensor gradient_sums(const std::vector<at::Tensor>& gradients, const Derivative& d,
                         const std::vector<const Affine*>& terms, const std::array<at::Tensor, 2>& g) {
  ensure(gradients.size() <= 2 && terms.size() <= 2, "no GPU kernel for ", gradients.size(), " gradients and ",
         terms.size(), " terms");
  const c10::cuda::CUDAGuard guard(gradients[0].device());
  // The mask of a ReLU is looked for in the output, or in one term; that of a sum of two is not simple.
  const bool masked_by_two = d.formula.is_relu() && !d.output.defined() && d.terms.size() > 1;
  return d.formula.simple() && !masked_by_two ? sums_of_simple(gradients, d, terms, g[0])
                                              : sums_of_any(gradients, d, terms, g);
}

at::Tensor finish_norm_gradient(const at::Tensor& own, const at::Tensor& total, const Normed& normed,
                                const at::Tensor& weight_gradient, const at::Tensor& bias_gradient) {
  const c10::cuda::CUDAGuard guard(own.device());
  at::Tensor out = at::empty_like(normed.coefficients);
  NormGradientJob job;
  job.channels = small(normed.coefficients.size(1));
  job.own = own.data_ptr<double>();
  job.total = total.data_ptr<double>();
  job.coefficients = normed.coefficients.data_ptr();
  job.deviation = normed.deviation.data_ptr<double>();
  job.weight_gradient = weight_gradient.data_ptr();
  job.bias_gradient = bias_gradient.data_ptr();
  job.result = out.data_ptr();
  finish_norm_gradient(number_of(out.scalar_type()), job, current_stream());
  return out;
}

void affine_gradient(const at::Tensor& g, const Affine& term, const at::Tensor& abc, const GradientOptions& options,
                     const at::Tensor& dx) {
  if (g.numel() == 0) return;
  const c10::cuda::CUDAGuard guard(g.device());
  AffineGradientJob job;
  job.g = view_of(g);
  job.term = view_of(term);
  job.result = abc.data_ptr();
  job.mask = options.mask;
  job.statistics = options.statistics;
  job.addend = view_of(options.addend);
  job.dx = view_of(dx);
  affine_gradient(field_of(g, term.x, options.addend, dx), job, current_stream());
}

bool conv_pays(const ConvSizes& s, bool input_gradient) {
  const auto known = [](std::int64_t n) { return n == 16 || n == 32 || n == 64; };
  // Fewer pixels do not fill a GPU with tiles.
  if (!known(s.out_channels) || s.pixels < 1 << 16) return false;
  if (s.in_channels == image_channels)
    return !input_gradient && ((s.kernel == 7 && s.stride == 2) || (s.kernel == 3 && s.stride <= 2));
  // From 32 and 64 channels on cuDNN is as fast, or faster (bench/gpu_convs.cpp).
  return known(s.in_channels) && s.kernel == 3 && s.stride == 1 && s.in_channels * s.out_channels <= 32 * 32;
}

void conv(const at::Tensor& in, Origin origin, const at::Tensor& weights, std::int64_t stride, const at::Tensor& out) {
  const c10::cuda::CUDAGuard guard(in.device());
  if (out.numel() == 0) return;
  ensure(weights.scalar_type() == at::kBFloat16, "weights of dtype ", weights.scalar_type());
  const ConvJob job = conv_job(in, origin, weights, stride, out);
  const bool image = job.in_channels == image_channels;
  const at::Tensor arranged = at::empty({image ? conv_of_image_room(job) : weights.numel()}, weights.options());
  const auto run = image ? conv_of_image : conv_of_few;
  run(job, weights_of(weights), arranged.data_ptr(), current_stream());
}

void conv_input_gradient(const at::Tensor& gradient, Origin origin, const at::Tensor& weights, const at::Tensor& out) {
  const c10::cuda::CUDAGuard guard(gradient.device());
  if (out.numel() == 0) return;
  ensure(weights.scalar_type() == at::kBFloat16, "weights of dtype ", weights.scalar_type());
  const at::Tensor arranged = at::empty({weights.numel()}, weights.options());
  // The same with the taps in the opposite order, and inputs and outputs exchanged.
  ConvWeights turned = weights_of(weights);
  std::swap(turned.in_stride, turned.out_stride);
  const std::int64_t last = weights.size(2) - 1;
  turned.data =
      static_cast<char*>(turned.data) + last * (turned.row_stride + turned.column_stride) * weights.element_size();
  turned.row_stride = -turned.row_stride;
  turned.column_stride = -turned.column_stride;
  conv_of_few(conv_job(gradient, {-last - origin.row, -last - origin.column}, weights, 1, out), turned,
              arranged.data_ptr(), current_stream());
}

void conv_weight_gradient(const at::Tensor& in, Origin origin, const at::Tensor& gradient, std::int64_t stride,
                          const at::Tensor& sum) {
  const c10::cuda::CUDAGuard guard(in.device());
  if (gradient.numel() == 0) return;
  const ConvJob job = conv_job(in, origin, sum, stride, gradient);
  const bool image = job.in_channels == image_channels;
  const std::int64_t blocks = image ? conv_of_image_blocks(job) : conv_of_few_blocks(job);
  const at::Tensor partials = at::empty({blocks, sum.numel()}, sum.options());
  const auto run = image ? conv_of_image_weights : conv_of_few_weights;
  run(job, partials.data_ptr<float>(), weights_of(sum), current_stream());
}

void image_of_bytes(const at::Tensor& bytes, const ByteImage& how, const at::Tensor& out) {
  const c10::cuda::CUDAGuard guard(out.device());
  const std::int64_t channels = out.size(0), rows = out.size(1), columns = out.size(2);
  ensure(bytes.scalar_type() == at::kByte && bytes.is_contiguous() && bytes.numel() == how.number_bytes * out.numel() &&
             bytes.device() == out.device(),
         "an image of sizes ", out.sizes(), " of bytes of sizes ", bytes.sizes());
  const at::Tensor numbers =
      at::from_blob(const_cast<double*>(how.numbers.data()), {std::ssize(how.numbers)}, at::kDouble).to(out.device());
  ByteImageJob job{.bytes = bytes.data_ptr(),
                   .of = how.number_bytes == 1   ? FileNumber::uint8
                         : how.number_bytes == 2 ? FileNumber::uint16
                                                 : FileNumber::float32,
                   .down = how.transpose ? channels : columns * channels,
                   .across = how.transpose ? rows * channels : channels,
                   .numbers = numbers.data_ptr<double>(),
                   .colours = how.colours,
                   .channels = static_cast<int>(channels),
                   .rows = static_cast<int>(rows),
                   .columns = static_cast<int>(columns),
                   .number = number_of(out.scalar_type()),
                   .out = out.data_ptr(),
                   .channel_stride = out.stride(0),
                   .row_stride = out.stride(1),
                   .column_stride = out.stride(2)};
  if (how.flip_rows) job.origin += (rows - 1) * job.down, job.down = -job.down;
  if (how.flip_columns) job.origin += (columns - 1) * job.across, job.across = -job.across;
  image_of_bytes(job, current_stream());
}

bool depthwise_can(std::int64_t kernel, std::int64_t stride) {
  return (kernel == 3 || kernel == 5 || kernel == 7) && (stride == 1 || stride == 2);
}

void depthwise(const at::Tensor& in, Origin origin, const at::Tensor& weights, const at::Tensor& bias,
               std::int64_t stride, const at::Tensor& out) {
  const c10::cuda::CUDAGuard guard(in.device());
  if (out.numel() == 0) return;
  const at::Tensor taps = taps_of(weights), biases = bias.defined() ? bias.to(taps.scalar_type()).contiguous() : bias;
  depthwise(depthwise_job(in, origin, weights.size(2), stride, out), taps.data_ptr(),
            biases.defined() ? biases.data_ptr() : nullptr, current_stream());
}

void depthwise_input_gradient(const at::Tensor& gradient, Origin origin, const at::Tensor& weights, std::int64_t stride,
                              const at::Tensor& out) {
  const c10::cuda::CUDAGuard guard(out.device());
  if (out.numel() == 0) return;
  const at::Tensor taps = taps_of(weights);
  depthwise_input_gradient(depthwise_job(out, origin, weights.size(2), stride, gradient), taps.data_ptr(),
                           current_stream());
}

void depthwise_weight_gradient(const at::Tensor& in, Origin origin, const at::Tensor& gradient, std::int64_t stride,
                               const at::Tensor& sum) {
  const c10::cuda::CUDAGuard guard(in.device());
  if (gradient.numel() == 0) return;
  const std::int64_t kernel = sum.size(2);
  const DepthwiseJob job = depthwise_job(in, origin, kernel, stride, gradient);
  const at::Tensor partials = at::empty({depthwise_blocks(job), kernel, kernel, in.size(1)}, sums(in));
  depthwise_weight_gradient(job, partials.data_ptr(), current_stream());
  sum.select(1, 0).add_(partials.sum(0, false, at::kDouble).permute({2, 0, 1}));
}

void max_pool(const Windows& windows, const Shape& image, const PoolSide& in, const PoolSide& out,
              const at::Tensor& winners) {
  const c10::cuda::CUDAGuard guard(out.data.device());
  max_pool(pool_job(windows, image, in, out, winners), current_stream());
}

void max_pool_gradient(const Windows& windows, const Shape& image, const PoolSide& in, const PoolSide& out,
                       const at::Tensor& winners) {
  const c10::cuda::CUDAGuard guard(in.data.device());
  max_pool_gradient(pool_job(windows, image, in, out, winners), current_stream());
}

void avg_pool(const Windows& windows, const Shape& image, bool count_padding, const PoolSide& in, const PoolSide& out) {
  const c10::cuda::CUDAGuard guard(out.data.device());
  PoolJob job = pool_job(windows, image, in, out, {});
  job.count_padding = count_padding;
  avg_pool(job, current_stream());
}

void avg_pool_gradient(const Windows& windows, const Shape& image, bool count_padding, const PoolSide& in,
                       const PoolSide& out) {
  const c10::cuda::CUDAGuard guard(in.data.device());
  PoolJob job = pool_job(windows, image, in, out, {});
  job.count_padding = count_padding;
  avg_pool_gradient(job, current_stream());
}

void dropout(const at::Tensor& x, const Shape& image, const DropoutPlace& place, const at::Tensor& out) {
  const c10::cuda::CUDAGuard guard(x.device());
  DropoutJob job;
  job.x = view_of(x);
  job.out = view_of(out);
  job.keep = place.keep;
  job.key = place.key;
  job.step = place.step.const_data_ptr<std::int64_t>();
  job.first_sample = place.first_sample;
  job.first_row = place.first_row;
  job.first_column = place.first_column;
  job.image_height = image.height;
  job.image_width = image.width;
  dropout(field_of(x, out), job, current_stream());
}

}  // namespace tessera::gpu
