// Pooling and dropout on the GPU. Gradients are gathered: each input pixel asks the windows over it, so that no two
// threads write to one place and sums have a fixed order.
#include "tessera/ops/cuda/gpu_device.cuh"

namespace tessera::gpu {
namespace {

constexpr int blocks_each = 16;

struct Range {
  int begin, end;
};

/// The taps of a window that fall on pixels of the image.
__device__ inline Range valid_taps(const WindowSide& w, int out) {
  const int start = out * w.stride - w.pad;
  return {max(0, -start), min(w.kernel, w.image - start)};
}

/// The outputs of the slab whose window holds input `in`.
__device__ inline Range windows_over(const WindowSide& w, int in) {
  const int after_first = in + w.pad - w.kernel;  // the last output that ends before `in`, times stride
  const int first = after_first < 0 ? 0 : after_first / w.stride + 1, last = (in + w.pad) / w.stride;
  return {max(first, w.out_begin), min(last + 1, w.out_end)};
}

/// Positions of the padded image that a window sees, as torch counts them, or of the image alone.
__device__ inline int divisor_along(const WindowSide& w, int out, bool count_padding) {
  const int start = out * w.stride - w.pad;
  if (count_padding) return min(start + w.kernel, w.image + w.pad_end) - start;
  const Range taps = valid_taps(w, out);
  return max(0, taps.end - taps.begin);
}

/// A pixel of one side of a pool.
struct Pixel {
  int sample, y, x;  ///< y and x in the whole value
};
__device__ inline Pixel pixel_at(std::uint32_t i, Range rows, Range columns) {
  const std::uint32_t width = columns.end - columns.begin, height = rows.end - rows.begin;
  const std::uint32_t row = i / width, sample = row / height;
  return {static_cast<int>(sample), rows.begin + static_cast<int>(row - sample * height),
          columns.begin + static_cast<int>(i - row * width)};
}

template <class T>
__device__ inline T* at(const View& view, int sample, int y, int x, std::uint32_t channels, std::uint32_t first) {
  return data_of<T>(view) + sample * view.sample_stride + y * view.row_stride + std::int64_t{x} * channels + first;
}

/// Calls visit(pixel, first channel) for this thread's share of the pixels of one side.
template <int count, class Visit>
__device__ inline void for_each_pixel(Range rows, Range columns, std::uint32_t pixels, std::uint32_t groups,
                                      const Visit& visit) {
  const std::uint32_t group = blockIdx.y * blockDim.x + threadIdx.x;
  if (group >= groups) return;
  for (std::uint32_t i = blockIdx.x * blockDim.y + threadIdx.y; i < pixels; i += gridDim.x * blockDim.y)
    visit(pixel_at(i, rows, columns), group * count);
}
template <int count, class Visit>
__device__ inline void for_each_output(const PoolJob& job, std::uint32_t pixels, std::uint32_t groups,
                                       const Visit& visit) {
  for_each_pixel<count>({job.height.out_begin, job.height.out_end}, {job.width.out_begin, job.width.out_end}, pixels,
                        groups, visit);
}
template <int count, class Visit>
__device__ inline void for_each_input(const PoolJob& job, std::uint32_t pixels, std::uint32_t groups,
                                      const Visit& visit) {
  for_each_pixel<count>({job.height.in_begin, job.height.in_end}, {job.width.in_begin, job.width.in_end}, pixels,
                        groups, visit);
}

template <class T, int count>
__device__ inline Pack<T, count> narrowed(const Accumulator<T> (&values)[count]) {
  Pack<T, count> out;
#pragma unroll
  for (int c = 0; c < count; ++c) out.values[c] = narrow<T>(values[c]);
  return out;
}

template <class T, int count>
__global__ void max_pool_kernel(PoolJob job, std::uint32_t pixels, std::uint32_t groups) {
  using A = Accumulator<T>;
  const WindowSide &h = job.height, &w = job.width;
  for_each_output<count>(job, pixels, groups, [&](const Pixel& p, std::uint32_t first) {
    const Range rows = valid_taps(h, p.y), columns = valid_taps(w, p.x);
    A best[count];
    Pack<std::uint8_t, count> winner;
#pragma unroll
    for (int c = 0; c < count; ++c) {
      best[c] = -INFINITY;
      // All of a window may be minus infinity: then its first pixel is the winner.
      winner.values[c] = static_cast<std::uint8_t>(rows.begin * w.kernel + columns.begin);
    }
    for (int a = rows.begin; a < rows.end; ++a)
      for (int b = columns.begin; b < columns.end; ++b) {
        const int y = p.y * h.stride - h.pad + a - h.in_begin, x = p.x * w.stride - w.pad + b - w.in_begin;
        const auto in = load<T, count>(at<const T>(job.in, p.sample, y, x, job.channels, first));
#pragma unroll
        for (int c = 0; c < count; ++c) {
          const A v = wide<T>(in.values[c]);
          const bool better = v > best[c] || v != v;  // a NaN wins, as in torch
          best[c] = better ? v : best[c];
          winner.values[c] = better ? static_cast<std::uint8_t>(a * w.kernel + b) : winner.values[c];
        }
      }
    const int y = p.y - h.out_begin, x = p.x - w.out_begin;
    store<T, count>(at<T>(job.out, p.sample, y, x, job.channels, first), narrowed<T, count>(best));
    store<std::uint8_t, count>(at<std::uint8_t>(job.winners, p.sample, y, x, job.channels, first), winner);
  });
}

template <class T, int count>
__global__ void max_pool_gradient_kernel(PoolJob job, std::uint32_t pixels, std::uint32_t groups) {
  using A = Accumulator<T>;
  const WindowSide &h = job.height, &w = job.width;
  for_each_input<count>(job, pixels, groups, [&](const Pixel& p, std::uint32_t first) {
    const Range rows = windows_over(h, p.y), columns = windows_over(w, p.x);
    A sum[count] = {};
    for (int y = rows.begin; y < rows.end; ++y)
      for (int x = columns.begin; x < columns.end; ++x) {
        const int tap = (p.y - y * h.stride + h.pad) * w.kernel + p.x - x * w.stride + w.pad;
        const int row = y - h.out_begin, column = x - w.out_begin;
        const auto dy = load<T, count>(at<const T>(job.out, p.sample, row, column, job.channels, first));
        const auto winner =
            load<std::uint8_t, count>(at<const std::uint8_t>(job.winners, p.sample, row, column, job.channels, first));
#pragma unroll
        for (int c = 0; c < count; ++c) sum[c] += winner.values[c] == tap ? wide<T>(dy.values[c]) : A(0);
      }
    store<T, count>(at<T>(job.in, p.sample, p.y - h.in_begin, p.x - w.in_begin, job.channels, first),
                    narrowed<T, count>(sum));
  });
}

template <class T, int count>
__global__ void avg_pool_kernel(PoolJob job, std::uint32_t pixels, std::uint32_t groups) {
  using A = Accumulator<T>;
  const WindowSide &h = job.height, &w = job.width;
  for_each_output<count>(job, pixels, groups, [&](const Pixel& p, std::uint32_t first) {
    const Range rows = valid_taps(h, p.y), columns = valid_taps(w, p.x);
    const A share =
        static_cast<A>(1.0 / (divisor_along(h, p.y, job.count_padding) * divisor_along(w, p.x, job.count_padding)));
    A sum[count] = {};
    for (int a = rows.begin; a < rows.end; ++a)
      for (int b = columns.begin; b < columns.end; ++b) {
        const int y = p.y * h.stride - h.pad + a - h.in_begin, x = p.x * w.stride - w.pad + b - w.in_begin;
        const auto in = load<T, count>(at<const T>(job.in, p.sample, y, x, job.channels, first));
#pragma unroll
        for (int c = 0; c < count; ++c) sum[c] += wide<T>(in.values[c]) * share;
      }
    store<T, count>(at<T>(job.out, p.sample, p.y - h.out_begin, p.x - w.out_begin, job.channels, first),
                    narrowed<T, count>(sum));
  });
}

template <class T, int count>
__global__ void avg_pool_gradient_kernel(PoolJob job, std::uint32_t pixels, std::uint32_t groups) {
  using A = Accumulator<T>;
  const WindowSide &h = job.height, &w = job.width;
  for_each_input<count>(job, pixels, groups, [&](const Pixel& p, std::uint32_t first) {
    const Range rows = windows_over(h, p.y), columns = windows_over(w, p.x);
    A sum[count] = {};
    for (int y = rows.begin; y < rows.end; ++y)
      for (int x = columns.begin; x < columns.end; ++x) {
        const A share =
            static_cast<A>(1.0 / (divisor_along(h, y, job.count_padding) * divisor_along(w, x, job.count_padding)));
        const auto dy =
            load<T, count>(at<const T>(job.out, p.sample, y - h.out_begin, x - w.out_begin, job.channels, first));
#pragma unroll
        for (int c = 0; c < count; ++c) sum[c] += wide<T>(dy.values[c]) * share;
      }
    store<T, count>(at<T>(job.in, p.sample, p.y - h.in_begin, p.x - w.in_begin, job.channels, first),
                    narrowed<T, count>(sum));
  });
}

/// As base/random.h has it: Philox4x32-10, the first two of its four words.
__device__ inline double uniform(std::uint64_t key, std::uint64_t low, std::uint64_t high) {
  auto k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  auto c0 = static_cast<std::uint32_t>(low), c1 = static_cast<std::uint32_t>(low >> 32),
       c2 = static_cast<std::uint32_t>(high), c3 = static_cast<std::uint32_t>(high >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * c0, p1 = std::uint64_t{0xCD9E8D57u} * c2;
    const auto n0 = static_cast<std::uint32_t>(p1 >> 32) ^ c1 ^ k0, n2 = static_cast<std::uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c0 = n0;
    c1 = static_cast<std::uint32_t>(p1);
    c2 = n2;
    c3 = static_cast<std::uint32_t>(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  const std::uint64_t bits = (std::uint64_t{c0} << 32) | c1;
  return static_cast<double>(bits >> 11) * 0x1.0p-53;
}

template <class T>
__global__ void dropout_kernel(Walk walk, DropoutJob job) {
  using A = Accumulator<T>;
  const std::uint32_t channel = blockIdx.y * blockDim.x + threadIdx.x;
  if (channel >= walk.channels) return;
  const A scale = static_cast<A>(1.0 / job.keep);
  const auto stream = static_cast<std::uint64_t>(*job.step);
  for (std::uint32_t i = blockIdx.x * blockDim.y + threadIdx.y; i < walk.pixels; i += gridDim.x * blockDim.y) {
    const std::uint32_t line = i / walk.width, sample = line / walk.rows;
    const std::int64_t row = job.first_row + (line - sample * walk.rows);
    const std::int64_t column = job.first_column + (i - line * walk.width);
    const std::int64_t place =
        (((job.first_sample + sample) * job.image_height + row) * job.image_width + column) * walk.channels + channel;
    const bool kept = uniform(job.key, static_cast<std::uint64_t>(place), stream) < job.keep;
    const A x = wide<T>(data_of<const T>(job.x)[walk.offset(job.x, i) + channel]);
    data_of<T>(job.out)[walk.offset(job.out, i) + channel] = narrow<T>(kept ? x * scale : A(0));
  }
}

/// Calls run(T{}, count, pixels, groups, shape) for the pixels of one side.
template <class Run>
void over_pixels(const PoolJob& job, const Range& rows, const Range& columns, const Run& run) {
  const std::uint32_t pixels = job.samples * static_cast<std::uint32_t>(rows.end - rows.begin) *
                               static_cast<std::uint32_t>(columns.end - columns.begin);
  if (pixels == 0) return;
  dispatch(job.number, job.vector, [&](auto number, auto count) {
    const std::uint32_t groups = job.channels / decltype(count)::value;
    run(number, count, pixels, groups, shape_of(pixels, groups, blocks_each));
  });
}
template <class Run>
void over_outputs(const PoolJob& job, const Run& run) {
  over_pixels(job, {job.height.out_begin, job.height.out_end}, {job.width.out_begin, job.width.out_end}, run);
}
template <class Run>
void over_inputs(const PoolJob& job, const Run& run) {
  over_pixels(job, {job.height.in_begin, job.height.in_end}, {job.width.in_begin, job.width.in_end}, run);
}

}  // namespace

void max_pool(const PoolJob& job, void* stream) {
  over_outputs(job, [&](auto number, auto count, std::uint32_t pixels, std::uint32_t groups, const Shape2& shape) {
    launch("max_pool", max_pool_kernel<decltype(number), decltype(count)::value>, shape.grid, shape.block, stream, job,
           pixels, groups);
  });
}

void avg_pool(const PoolJob& job, void* stream) {
  over_outputs(job, [&](auto number, auto count, std::uint32_t pixels, std::uint32_t groups, const Shape2& shape) {
    launch("avg_pool", avg_pool_kernel<decltype(number), decltype(count)::value>, shape.grid, shape.block, stream, job,
           pixels, groups);
  });
}

void max_pool_gradient(const PoolJob& job, void* stream) {
  over_inputs(job, [&](auto number, auto count, std::uint32_t pixels, std::uint32_t groups, const Shape2& shape) {
    launch("max_pool_gradient", max_pool_gradient_kernel<decltype(number), decltype(count)::value>, shape.grid,
           shape.block, stream, job, pixels, groups);
  });
}

void avg_pool_gradient(const PoolJob& job, void* stream) {
  over_inputs(job, [&](auto number, auto count, std::uint32_t pixels, std::uint32_t groups, const Shape2& shape) {
    launch("avg_pool_gradient", avg_pool_gradient_kernel<decltype(number), decltype(count)::value>, shape.grid,
           shape.block, stream, job, pixels, groups);
  });
}

void dropout(const Field& f, const DropoutJob& job, void* stream) {
  if (f.pixels() == 0) return;
  dispatch(f.number, /*vector=*/false, [&](auto number, auto) {
    const Shape2 shape = shape_of(f.pixels(), f.channels, blocks_each);
    launch("dropout", dropout_kernel<decltype(number)>, shape.grid, shape.block, stream, walk_of(f, 1), job);
  });
}

}  // namespace tessera::gpu
