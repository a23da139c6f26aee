// Depthwise convolutions: every channel has a window of its own, so nothing is shared between channels, and the bytes
// of input and output are what counts.
//
// A thread keeps to a few adjacent channels and makes a strip of adjacent pixels of one row. A number is read, made
// wide once, and used for all pixels of the strip that see it. The threads of a block make a tile of eight rows, so
// that what the rows share comes from the multiprocessor's cache:
//
//              strip      strip                  threadIdx.x  adjacent channels
//     row 0  [t0      ][t8      ]                threadIdx.y  strips, down the tile first
//     row 1  [t1      ][t9      ]                blockIdx.x   tiles of all samples (for weights: every gridDim.x-th)
//       ...                                      blockIdx.y   channels where a block is too narrow
#include <type_traits>

#include "tessera/ops/cuda/gpu_device.cuh"

namespace tessera::gpu {
namespace {

constexpr int most_rows = 8;

/// How threads and tiles are dealt out.
struct Deal {
  int groups;            ///< of channels
  int across, strips;    ///< threads of a block: groups of channels, strips
  int rows;              ///< of a tile
  int tiles_x, tiles_y;  ///< of a sample
  int strip;             ///< pixels
  int shift;             ///< the first strip begins so many pixels outside

  __host__ __device__ int columns() const { return strips / rows * strip; }
};

/// A window, and how a thread goes about it: so many pixels, so many lines of the window at once, and with registers
/// for so many blocks on a multiprocessor.
template <int kernel_, int stride_, int strip_, int lines_, int blocks_>
struct Shape {
  static constexpr int kernel = kernel_, stride = stride_, strip = strip_, lines = lines_, blocks = blocks_;
};

/// Where a thread works.
struct Spot {
  int group, sample, y, x;
  __device__ Spot(const Deal& deal, int tile)
      : group(blockIdx.y * deal.across + threadIdx.x),
        sample(tile / (deal.tiles_x * deal.tiles_y)),
        y(tile / deal.tiles_x % deal.tiles_y * deal.rows + threadIdx.y % deal.rows),
        x((tile % deal.tiles_x) * deal.columns() + threadIdx.y / deal.rows * deal.strip - deal.shift) {}
};

__device__ inline bool inside(int i, int size) { return static_cast<unsigned>(i) < static_cast<unsigned>(size); }

/// A number of a pack. Of a pair of bfloat16 one instruction each: they are the upper halves of floats.
template <class T, int count>
__device__ inline Accumulator<T> wide_at(const Pack<T, count>& pack, int v) {
  return wide(pack.values[v]);
}
template <int count>
__device__ inline float wide_at(const Pack<bfloat16, count>& pack, int v) {
  if constexpr (count % 2 == 0) {
    const unsigned pair = reinterpret_cast<const unsigned*>(pack.values)[v / 2];
    return __uint_as_float(v % 2 ? pair & 0xffff0000U : pair << 16);
  } else {
    return wide(pack.values[v]);
  }
}

/// Adjacent pixels of a row from `first` on; zeros where there are none. All are on their way before one is used.
template <class T, int count, int pixels>
struct Line {
  Pack<T, count> packs[pixels];

  __device__ inline void read(const T* row, int first, int columns, int channels) {
    const T* const from = row + std::int64_t{first} * channels;
#pragma unroll
    for (int c = 0; c < pixels; ++c)
      packs[c] = inside(first + c, columns) ? load<T, count>(from + c * channels) : Pack<T, count>{};
  }
  __device__ inline Accumulator<T> at(int c, int v) const { return wide_at(packs[c], v); }
};

template <class T, int count>
__device__ inline void write(T* to, const Accumulator<T> (&from)[count]) {
  Pack<T, count> pack;
#pragma unroll
  for (int v = 0; v < count; ++v) pack.values[v] = narrow<T>(from[v]);
  store<T, count>(to, pack);
}

template <class T, int count, class Shape>
__global__ void __launch_bounds__(block_threads, Shape::blocks)
    depthwise_kernel(DepthwiseJob job, Deal deal, const Accumulator<T>* weights, const Accumulator<T>* bias) {
  using A = Accumulator<T>;
  constexpr int kernel = Shape::kernel, stride = Shape::stride, strip = Shape::strip;
  const Spot at(deal, blockIdx.x);
  if (at.group >= deal.groups || at.y >= job.out_rows || at.x >= job.out_columns) return;
  const int channel = at.group * count;
  A sums[strip][count];
#pragma unroll
  for (int r = 0; r < strip; ++r)
#pragma unroll
    for (int v = 0; v < count; ++v) sums[r][v] = bias ? bias[channel + v] : A(0);

  const T* const in = data_of<const T>(job.in) + at.sample * job.in.sample_stride + channel;
#pragma unroll(Shape::lines)
  for (int i = 0; i < kernel; ++i) {
    const int row = at.y * stride + job.top + i;
    constexpr int pixels = (strip - 1) * stride + kernel;
    Line<T, count, pixels> seen;
    seen.read(in + row * job.in.row_stride, at.x * stride + job.left, inside(row, job.in_rows) ? job.in_columns : 0,
              job.channels);
    A w[kernel][count];
#pragma unroll
    for (int j = 0; j < kernel; ++j) read_row(weights + (i * kernel + j) * job.channels + channel, w[j]);
#pragma unroll
    for (int c = 0; c < pixels; ++c)
#pragma unroll
      for (int v = 0; v < count; ++v) {
        const A x = seen.at(c, v);
#pragma unroll
        for (int r = 0; r < strip; ++r)
          if (0 <= c - r * stride && c - r * stride < kernel) sums[r][v] += x * w[c - r * stride][v];
      }
  }
  T* const out = data_of<T>(job.out) + at.sample * job.out.sample_stride + at.y * job.out.row_stride + channel;
#pragma unroll
  for (int r = 0; r < strip; ++r)
    if (at.x + r < job.out_columns) write(out + std::int64_t{at.x + r} * job.channels, sums[r]);
}

/// job.in is written, job.out is the gradient. Strips begin where a window of the stride does.
template <class T, int count, class Shape>
__global__ void __launch_bounds__(block_threads, Shape::blocks)
    depthwise_input_gradient_kernel(DepthwiseJob job, Deal deal, const Accumulator<T>* weights) {
  using A = Accumulator<T>;
  constexpr int kernel = Shape::kernel, stride = Shape::stride, strip = Shape::strip;
  const Spot at(deal, blockIdx.x);
  if (at.group >= deal.groups || at.y >= job.in_rows || at.x >= job.in_columns) return;
  const int channel = at.group * count;
  A sums[strip][count] = {};

  const T* const out = data_of<const T>(job.out) + at.sample * job.out.sample_stride + channel;
  const int above = at.y - job.top, left = (at.x - job.left) / stride;
#pragma unroll(Shape::lines)
  for (int k = 0; k < (kernel + stride - 1) / stride; ++k) {
    const int i = k * stride + (above % stride + stride) % stride, row = (above - i) / stride;
    if (stride > 1 && i >= kernel) continue;
    constexpr int before = (kernel - 1) / stride, pixels = before + (strip - 1) / stride + 1;
    Line<T, count, pixels> seen;
    seen.read(out + row * job.out.row_stride, left - before, above >= i && row < job.out_rows ? job.out_columns : 0,
              job.channels);
    A w[kernel][count];
#pragma unroll
    for (int j = 0; j < kernel; ++j) read_row(weights + (i * kernel + j) * job.channels + channel, w[j]);
#pragma unroll
    for (int c = 0; c < pixels; ++c)
#pragma unroll
      for (int v = 0; v < count; ++v) {
        const A g = seen.at(c, v);
#pragma unroll
        for (int r = 0; r < strip; ++r) {
          const int j = r - (c - before) * stride;
          if (0 <= j && j < kernel) sums[r][v] += g * w[j][v];
        }
      }
  }
  T* const in = data_of<T>(job.in) + at.sample * job.in.sample_stride + at.y * job.in.row_stride + channel;
#pragma unroll
  for (int r = 0; r < strip; ++r)
    if (0 <= at.x + r && at.x + r < job.in_columns) write(in + std::int64_t{at.x + r} * job.channels, sums[r]);
}

/// Leaves partials[block][tap][channel]. Pixels of the gradient are taken `together` at a time, and `lines` lines of
/// the window: blockIdx.z says which.
template <class T, int count, int kernel, int stride, int together, int lines>
__global__ void __launch_bounds__(block_threads, 2)
    depthwise_weights_kernel(DepthwiseJob job, Deal deal, int tiles, Accumulator<T>* partials) {
  using A = Accumulator<T>;
  A sums[lines][kernel][count] = {};
  const int group = blockIdx.y * deal.across + threadIdx.x, channel = group * count, first_line = blockIdx.z * lines;
  if (group < deal.groups)
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
      const Spot at(deal, tile);
      if (at.y >= job.out_rows) continue;
      const T* const in = data_of<const T>(job.in) + at.sample * job.in.sample_stride + channel;
      const T* const out =
          data_of<const T>(job.out) + at.sample * job.out.sample_stride + at.y * job.out.row_stride + channel;
#pragma unroll 1
      for (int first = at.x; first < at.x + deal.strip && first < job.out_columns; first += together) {
        Line<T, count, together> gradient;
        gradient.read(out, first, job.out_columns, job.channels);
#pragma unroll
        for (int i = 0; i < lines; ++i) {
          const int row = at.y * stride + job.top + first_line + i;
          if (first_line + i >= kernel) continue;
          constexpr int pixels = (together - 1) * stride + kernel;
          Line<T, count, pixels> seen;
          seen.read(in + row * job.in.row_stride, first * stride + job.left,
                    inside(row, job.in_rows) ? job.in_columns : 0, job.channels);
#pragma unroll
          for (int c = 0; c < pixels; ++c)
#pragma unroll
            for (int v = 0; v < count; ++v) {
              const A x = seen.at(c, v);
#pragma unroll
              for (int r = 0; r < together; ++r)
                if (0 <= c - r * stride && c - r * stride < kernel) sums[i][c - r * stride][v] += gradient.at(r, v) * x;
            }
        }
      }
    }

  // The strips of a block add up in pairs, always the same ones.
  extern __shared__ __align__(16) unsigned char memory[];
  A* const shared = reinterpret_cast<A*>(memory);
  const int width = blockDim.x;
  for (int half = blockDim.y / 2; half > 0; half /= 2) {
    const int y = threadIdx.y;
    const auto place = [&](int i, int j, int v) {
      return (((i * kernel + j) * count + v) * half + y % half) * width + threadIdx.x;
    };
    if (half <= y && y < 2 * half) {
#pragma unroll
      for (int i = 0; i < lines; ++i)
#pragma unroll
        for (int j = 0; j < kernel; ++j)
#pragma unroll
          for (int v = 0; v < count; ++v) shared[place(i, j, v)] = sums[i][j][v];
    }
    __syncthreads();
    if (y < half) {
#pragma unroll
      for (int i = 0; i < lines; ++i)
#pragma unroll
        for (int j = 0; j < kernel; ++j)
#pragma unroll
          for (int v = 0; v < count; ++v) sums[i][j][v] += shared[place(i, j, v)];
    }
    __syncthreads();
  }
  if (threadIdx.y == 0 && group < deal.groups) {
    A* const mine = partials + std::int64_t{blockIdx.x} * kernel * kernel * job.channels + channel;
#pragma unroll
    for (int i = 0; i < lines; ++i)
#pragma unroll
      for (int j = 0; j < kernel; ++j)
#pragma unroll
        for (int v = 0; v < count; ++v)
          if (first_line + i < kernel)
            mine[std::int64_t{(first_line + i) * kernel + j} * job.channels + v] = sums[i][j][v];
  }
}

Deal deal_of(const DepthwiseJob& job, int count, int bytes, int rows, int columns, int strip, int shift) {
  Deal deal;
  deal.strip = strip;
  deal.groups = job.channels / count;
  // A line of the cache is 128 bytes; several blocks take equal shares of the channels.
  const int most = std::max(1, 128 / (count * bytes)), chunks = (deal.groups + most - 1) / most;
  deal.across = (deal.groups + chunks - 1) / chunks;
  deal.strips = 1;
  while (deal.strips * 2 * deal.across <= block_threads) deal.strips *= 2;
  deal.rows = std::min(deal.strips, most_rows);
  deal.shift = shift;
  deal.tiles_x = (columns + shift + deal.columns() - 1) / deal.columns();
  deal.tiles_y = (rows + deal.rows - 1) / deal.rows;
  return deal;
}

dim3 grid_of(const Deal& deal, std::int64_t blocks) {
  return {static_cast<unsigned>(blocks), static_cast<unsigned>((deal.groups + deal.across - 1) / deal.across)};
}

std::int64_t tiles_of(const Deal& deal, const DepthwiseJob& job) {
  return std::int64_t{deal.tiles_x} * deal.tiles_y * job.samples;
}

// What measuring on an H200 chose (bfloat16; bench_gpu_convs --depthwise): as many channels and pixels as registers
// allow for two blocks. The gradient of the weights has a sum for each tap: of large windows some lines at a time.
template <class T, int kernel, int stride>
constexpr int channels_at_once = std::min(vector_count<T>, kernel == 3 && stride == 1 ? 8 : 4);
template <class T, int kernel, int stride>
using Chosen = Shape<kernel, stride,
                     kernel == 3 && stride == 1 && vector_count<T> == 8 ? 4
                     : stride == 1                                      ? 8
                                                                        : 4,
                     1, 2>;
template <class T, int kernel, int stride>
constexpr int channels_of_sums = std::min(vector_count<T>, kernel == 3 && stride == 2 ? 8 : 4);
template <int kernel>
constexpr int lines_of_sums = kernel == 3 ? 3 : 2;
template <int kernel, int stride>
constexpr int pixels_together = kernel > 3    ? 4
                                : stride == 1 ? 8
                                              : 2;

template <class T, class Body>
void with_window(const DepthwiseJob& job, const Body& body) {
  const auto stride = [&](auto kernel) {
    if (job.stride == 1) return body(kernel, Count<1>{});
    if (job.stride == 2) return body(kernel, Count<2>{});
    throw std::logic_error("no depthwise kernel with this stride");
  };
  if (job.kernel == 3) return stride(Count<3>{});
  if (job.kernel == 5) return stride(Count<5>{});
  if (job.kernel == 7) return stride(Count<7>{});
  throw std::logic_error("no depthwise kernel with this window");
}

/// Calls body(T{}, kernel, stride).
template <class Body>
void with_types(const DepthwiseJob& job, const Body& body) {
  const auto run = [&](auto number) {
    with_window<decltype(number)>(job, [&](auto kernel, auto stride) { body(number, kernel, stride); });
  };
  if (job.number == Number::float32) return run(float{});
  if (job.number == Number::float64) return run(double{});
  run(bfloat16{});
}

template <class T, int count, class Shape>
void run_depthwise(const DepthwiseJob& job, const void* weights, const void* bias, void* stream) {
  using A = Accumulator<T>;
  const Deal deal = deal_of(job, count, sizeof(T), job.out_rows, job.out_columns, Shape::strip, 0);
  launch("depthwise", depthwise_kernel<T, count, Shape>, grid_of(deal, tiles_of(deal, job)),
         dim3(deal.across, deal.strips), stream, job, deal, static_cast<const A*>(weights),
         static_cast<const A*>(bias));
}

template <class T, int count, class Shape>
void run_input_gradient(const DepthwiseJob& job, const void* weights, void* stream) {
  using A = Accumulator<T>;
  const int first = (job.left % job.stride + job.stride) % job.stride, shift = (job.stride - first) % job.stride;
  const Deal deal = deal_of(job, count, sizeof(T), job.in_rows, job.in_columns, Shape::strip, shift);
  launch("depthwise_input_gradient", depthwise_input_gradient_kernel<T, count, Shape>,
         grid_of(deal, tiles_of(deal, job)), dim3(deal.across, deal.strips), stream, job, deal,
         static_cast<const A*>(weights));
}

template <class T, int count, int kernel, int stride, int together = pixels_together<kernel, stride>,
          int lines = lines_of_sums<kernel>>
void run_weight_gradient(const DepthwiseJob& job, int blocks, void* partials, void* stream) {
  using A = Accumulator<T>;
  const Deal deal = deal_of(job, count, sizeof(T), job.out_rows, job.out_columns, 8, 0);
  dim3 grid = grid_of(deal, blocks);
  grid.z = (kernel + lines - 1) / lines;
  const int bytes = std::max(1, deal.strips / 2) * deal.across * lines * kernel * count * static_cast<int>(sizeof(A));
  const auto run = depthwise_weights_kernel<T, count, kernel, stride, together, lines>;
  // The limit is the function's: the same whoever calls, as ranks that are threads share a GPU.
  constexpr int most = block_threads / 2 * lines * kernel * count * static_cast<int>(sizeof(A));
  check(cudaFuncSetAttribute(run, cudaFuncAttributeMaxDynamicSharedMemorySize, most), "cudaFuncSetAttribute");
  run<<<grid, dim3(deal.across, deal.strips), bytes, static_cast<cudaStream_t>(stream)>>>(
      job, deal, static_cast<int>(tiles_of(deal, job)), static_cast<A*>(partials));
  check(cudaGetLastError(), "depthwise_weights");
}

}  // namespace

void depthwise(const DepthwiseJob& job, const void* weights, const void* bias, void* stream) {
  with_types(job, [&](auto number, auto kernel, auto stride) {
    using T = decltype(number);
    constexpr int k = decltype(kernel)::value, s = decltype(stride)::value;
    if (job.vector) return run_depthwise<T, channels_at_once<T, k, s>, Chosen<T, k, s>>(job, weights, bias, stream);
    run_depthwise<T, 1, Chosen<T, k, s>>(job, weights, bias, stream);
  });
}

void depthwise_input_gradient(const DepthwiseJob& job, const void* weights, void* stream) {
  with_types(job, [&](auto number, auto kernel, auto stride) {
    using T = decltype(number);
    constexpr int k = decltype(kernel)::value, s = decltype(stride)::value;
    if (job.vector) return run_input_gradient<T, channels_at_once<T, k, s>, Chosen<T, k, s>>(job, weights, stream);
    run_input_gradient<T, 1, Chosen<T, k, s>>(job, weights, stream);
  });
}

int depthwise_blocks(const DepthwiseJob& job) {
  // Enough to fill the GPU; where channels are many, they do.
  const int lines = std::max(1, job.channels / 32);
  return std::max(
      1, std::min(4 * multiprocessors() / lines, (job.samples * job.out_rows + 7) / 8 * ((job.out_columns + 31) / 32)));
}

void depthwise_weight_gradient(const DepthwiseJob& job, void* partials, void* stream) {
  const int blocks = depthwise_blocks(job);
  with_types(job, [&](auto number, auto kernel, auto stride) {
    using T = decltype(number);
    constexpr int k = decltype(kernel)::value, s = decltype(stride)::value;
    if (job.vector) return run_weight_gradient<T, channels_of_sums<T, k, s>, k, s>(job, blocks, partials, stream);
    run_weight_gradient<T, 1, k, s>(job, blocks, partials, stream);
  });
}

}  // namespace tessera::gpu
