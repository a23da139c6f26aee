// 3×3 convolutions of few channels, stride 1, bfloat16, on tensor cores. Libraries work in tiles of 64 channels or more
// and take several times what memory would allow for the 16 of a network's first layers.
//
// A block brings a tile of pixels with its margin to shared memory, once. There a window's tap is the same tile, one
// pixel further, so the product over taps and channels is a sum of 9 · channels/16 small products:
//
//     16 pixels of a row × 16 channels  ·  16 channels × 16 outputs      (mma.m16n8k16, twice)
//
// What a warp has read of a row serves the three rows of outputs that see it.
#include "tessera/ops/cuda/gpu_tensor_core.cuh"

namespace tessera::gpu {
namespace {

/// A block makes `tile_rows` rows of outputs, a warp `rows` of them and 16 columns, 8·tiles outputs at once.
template <int channels, int tiles>
struct Shape {
  static constexpr int rows = tiles == 8 ? 2 : 4, tile_rows = channels == 64 || tiles == 8 ? 8 : 16;
  static constexpr int across = tile_columns / group, width = tile_columns + 2;
  static constexpr int threads = 32 * across * (tile_rows / rows), bytes = (tile_rows + 2) * width * channels * 2;
  static constexpr int blocks_each = tiles > 2 ? 512 / threads : threads == 256 ? 3 : 5;  // on a multiprocessor
};

/// The weights in the order in which threads take them: [outputs / (8·tiles)][channels / 16][tap][tiles / 2][thread], 8
/// numbers each.
__global__ void arrange_weights_kernel(ConvWeights weights, int channels, int outputs, int tiles, bfloat16* to) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= 9 * channels * outputs) return;
  const int e = i % 2, r = i / 2 % 2, thread = i / 8 % 32, j = i / 256 % (tiles / 2) * 2 + i / 4 % 2;
  const int at = i / 128 / tiles, tap = at % 9, k = at / 9 % (channels / group), chunk = at / 9 / (channels / group);
  const int in = k * group + 2 * (thread % 4) + 8 * r + e, out = chunk * 8 * tiles + output_of(tiles, j, thread / 4);
  to[i] = static_cast<const bfloat16*>(weights.data)[out * weights.out_stride + in * weights.in_stride +
                                                     tap / 3 * weights.row_stride + tap % 3 * weights.column_stride];
}

template <int channels, int tiles>
__global__ void __launch_bounds__(Shape<channels, tiles>::threads, Shape<channels, tiles>::blocks_each)
    conv3x3_kernel(ConvJob job, const uint4* __restrict__ weights, int across, int down) {
  using In = Tile<channels>;
  using S = Shape<channels, tiles>;
  constexpr int steps = channels / group, rows = S::rows, pairs = tiles / 2;
  extern __shared__ __align__(128) unsigned char memory[];
  const unsigned tile = shared_address(memory);
  const Place at(blockIdx.x, across, down, S::tile_rows);
  In::template fetch<S::tile_rows + 2, S::width, S::threads>(
      tile, data_of<const bfloat16>(job.in) + at.sample * job.in.sample_stride, job.in.row_stride, channels,
      job.in_rows, job.in_columns, at.row + job.top, at.column + job.left);
  wait_for_copies();
  __syncthreads();

  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int first_row = warp / S::across * rows, first_column = warp % S::across * group;
  const int seen = first_row * S::width + first_column + lane % 16;
  for (int chunk = 0; chunk < job.out_channels / (8 * tiles); ++chunk) {
    float sums[rows][tiles][4] = {};
    for (int k = 0; k < steps; ++k) {
      const uint4* const taps = weights + (chunk * steps + k) * 9 * pairs * 32 + lane;
#pragma unroll
      for (int dx = 0; dx < 3; ++dx) {
        unsigned pixels[rows + 2][4];
#pragma unroll
        for (int r = 0; r < rows + 2; ++r)
          load_matrices(pixels[r], tile + In::place(seen + r * S::width + dx, 2 * k + lane / 16));
#pragma unroll
        for (int dy = 0; dy < 3; ++dy) {
          uint4 w[pairs];
#pragma unroll
          for (int p = 0; p < pairs; ++p) w[p] = taps[((3 * dy + dx) * pairs + p) * 32];
#pragma unroll
          for (int r = 0; r < rows; ++r)
#pragma unroll
            for (int p = 0; p < pairs; ++p) {
              multiply_add(sums[r][2 * p], pixels[r + dy], w[p].x, w[p].y);
              multiply_add(sums[r][2 * p + 1], pixels[r + dy], w[p].z, w[p].w);
            }
        }
      }
    }
    bfloat16* const out = data_of<bfloat16>(job.out) + at.sample * job.out.sample_stride;
    const int column = at.column + first_column;
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      const int row = at.row + first_row + r;
      if (row < job.out_rows)
        store_outputs<tiles>(
            sums[r], out + row * job.out.row_stride + std::int64_t{column} * job.out_channels + chunk * 8 * tiles,
            job.out_channels, job.out_columns - column, lane);
    }
  }
}

// ---- The gradient of the weights: products of 16 outputs × 16 pixels and 16 pixels × 16 channels ----

constexpr int weights_threads = 128, rows_at_once = 8;
constexpr int weights_tile_rows(int channels) { return channels == 64 ? 8 : 16; }

template <int channels>
struct WeightsShape {
  static constexpr int tile_rows = weights_tile_rows(channels), width = tile_columns + 2;
  static constexpr int in_bytes = (tile_rows + 2) * width * channels * 2;
  static constexpr int gradient_bytes = tile_rows * tile_columns * group * 2;
  static constexpr int sum_bytes = group * 9 * channels * 4;
  static constexpr int bytes = in_bytes + gradient_bytes > sum_bytes ? in_bytes + gradient_bytes : sum_bytes;
};

/// Leaves partials[block][output][tap][channel]. blockIdx.y: which 16 outputs. A warp keeps to 16 channels and goes
/// down 8 rows of 16 pixels at a time; the gradients of the last three rows stay in registers.
template <int channels>
__global__ void __launch_bounds__(weights_threads, 4)
    conv3x3_weights_kernel(ConvJob job, int across, int down, std::int64_t tiles, float* partials) {
  using In = Tile<channels>;
  using Gradient = Tile<group>;
  using S = WeightsShape<channels>;
  constexpr int slices = channels / group, parts = weights_threads / 32 / slices;
  constexpr int columns = tile_columns / group, units = columns * S::tile_rows / rows_at_once;
  extern __shared__ __align__(128) unsigned char memory[];
  const unsigned in_tile = shared_address(memory), gradient_tile = in_tile + S::in_bytes;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, slice = warp % slices, part = warp / slices;
  const int chunk = blockIdx.y;

  float sums[9][2][4] = {};
  for (std::int64_t t = blockIdx.x; t < tiles; t += gridDim.x) {
    const Place at(t, across, down, S::tile_rows);
    In::template fetch<S::tile_rows + 2, S::width, weights_threads>(
        in_tile, data_of<const bfloat16>(job.in) + at.sample * job.in.sample_stride, job.in.row_stride, channels,
        job.in_rows, job.in_columns, at.row + job.top, at.column + job.left);
    Gradient::template fetch<S::tile_rows, tile_columns, weights_threads>(
        gradient_tile, data_of<const bfloat16>(job.out) + at.sample * job.out.sample_stride + chunk * group,
        job.out.row_stride, job.out_channels, job.out_rows, job.out_columns, at.row, at.column);
    wait_for_copies();
    __syncthreads();
    for (int unit = part; unit < units; unit += parts) {
      const int first_row = unit / columns * rows_at_once, first_column = unit % columns * group;
      // Which of the four matrices this thread names a row of, and which row.
      const int m = lane / 8, i = lane % 8;
      const int gradient_pixel = first_row * tile_columns + first_column + i + 8 * (m / 2);
      const int in_pixel = first_row * S::width + first_column + i + 8 * (m % 2);
      unsigned gradient[3][4];
#pragma unroll
      for (int r = 0; r < rows_at_once + 2; ++r) {
        if (r < rows_at_once)
          load_transposed(gradient[r % 3], gradient_tile + Gradient::place(gradient_pixel + r * tile_columns, m % 2));
#pragma unroll
        for (int dx = 0; dx < 3; ++dx) {
          unsigned pixels[4];
          load_transposed(pixels, in_tile + In::place(in_pixel + r * S::width + dx, 2 * slice + m / 2));
#pragma unroll
          for (int dy = 0; dy < 3; ++dy) {
            if (r - dy < 0 || r - dy >= rows_at_once) continue;
            multiply_add(sums[dy * 3 + dx][0], gradient[(r - dy) % 3], pixels[0], pixels[1]);
            multiply_add(sums[dy * 3 + dx][1], gradient[(r - dy) % 3], pixels[2], pixels[3]);
          }
        }
      }
    }
    __syncthreads();  // all have read the tile
  }

  // The warps of one slice add up in the order of their parts.
  float* const total = reinterpret_cast<float*>(memory);
  for (int p = 0; p < parts; ++p) {
    if (p == part) {
#pragma unroll
      for (int tap = 0; tap < 9; ++tap)
#pragma unroll
        for (int j = 0; j < 2; ++j)
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const int out = lane / 4 + 8 * (e / 2), in = slice * group + 8 * j + 2 * (lane % 4) + e % 2;
            float& sum = total[(out * 9 + tap) * channels + in];
            sum = p == 0 ? sums[tap][j][e] : sum + sums[tap][j][e];
          }
    }
    __syncthreads();
  }
  constexpr int count = group * 9 * channels;
  float* const mine = partials + (std::int64_t{blockIdx.x} * gridDim.y + chunk) * count;
  for (int i = threadIdx.x; i < count; i += weights_threads) mine[i] = total[i];
}

template <class Body>
void with_channels(int channels, const Body& body) {
  if (channels == 16) return body(Count<16>{});
  if (channels == 32) return body(Count<32>{});
  if (channels == 64) return body(Count<64>{});
  throw std::logic_error("no 3x3 kernel for " + std::to_string(channels) + " channels");
}

template <int channels, int tiles>
void run(const ConvJob& job, const ConvWeights& weights, void* arranged, void* stream) {
  using S = Shape<channels, tiles>;
  const int count = 9 * channels * job.out_channels;
  launch("arrange_weights", arrange_weights_kernel, dim3((count + 255) / 256), dim3(256), stream, weights, channels,
         job.out_channels, tiles, static_cast<bfloat16*>(arranged));
  const int across = tiles_across(job), down = tiles_down(job, S::tile_rows);
  allow(conv3x3_kernel<channels, tiles>, S::bytes);
  conv3x3_kernel<channels, tiles>
      <<<dim3(static_cast<unsigned>(across) * down * job.samples), dim3(S::threads), S::bytes,
         static_cast<cudaStream_t>(stream)>>>(job, static_cast<const uint4*>(arranged), across, down);
  check(cudaGetLastError(), "conv3x3");
}

}  // namespace

void conv_of_few(const ConvJob& job, const ConvWeights& weights, void* arranged, void* stream) {
  with_channels(job.in_channels, [&](auto c) {
    constexpr int channels = decltype(c)::value;
    if (job.out_channels % 64 == 0) return run<channels, 8>(job, weights, arranged, stream);
    if (job.out_channels % 32 == 0) return run<channels, 4>(job, weights, arranged, stream);
    run<channels, 2>(job, weights, arranged, stream);
  });
}

int conv_of_few_blocks(const ConvJob& job) { return weight_blocks(job, weights_tile_rows(job.in_channels)); }

void conv_of_few_weights(const ConvJob& job, float* partials, const ConvWeights& gradient, void* stream) {
  const int blocks = conv_of_few_blocks(job);
  with_channels(job.in_channels, [&](auto c) {
    constexpr int channels = decltype(c)::value;
    using S = WeightsShape<channels>;
    const int across = tiles_across(job), down = tiles_down(job, S::tile_rows);
    allow(conv3x3_weights_kernel<channels>, S::bytes);
    conv3x3_weights_kernel<channels>
        <<<dim3(blocks, job.out_channels / group), dim3(weights_threads), S::bytes,
           static_cast<cudaStream_t>(stream)>>>(job, across, down, std::int64_t{across} * down * job.samples, partials);
    check(cudaGetLastError(), "conv3x3_weights");
  });
  add_weights(partials, blocks, job, gradient, stream);
}

}  // namespace tessera::gpu
