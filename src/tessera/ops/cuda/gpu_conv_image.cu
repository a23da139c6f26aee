// The first convolution of a network, bfloat16, on tensor cores: it sees three channels, which libraries pad to eight
// or more in a copy of the image.
//
// With channels last, what a window sees of one row is adjacent: 7 pixels are 21 numbers. So a row of the window is one
// long tap of 24 numbers, the last three of which have weight zero:
//
//     16 windows × 8 numbers  ·  8 numbers × 8 outputs      (mma.m16n8k8)
#include "tessera/ops/cuda/gpu_tensor_core.cuh"

namespace tessera::gpu {
namespace {

constexpr int colors = 3, tile_rows = 8;

__device__ inline void multiply_add_8(float (&sum)[4], unsigned a0, unsigned a1, unsigned b) {
  TESSERA_TENSOR_CORES(
      asm("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
          : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
          : "r"(a0), "r"(a1), "r"(b)));
}

template <int kernel_, int stride_>
struct Window {
  static constexpr int kernel = kernel_, stride = stride_;
  static constexpr int numbers = kernel * colors;   // of one row of a window
  static constexpr int eights = (numbers + 7) / 8;  // products for one row
  static constexpr int step = stride * colors;      // numbers from one window to the next
  static constexpr int in_rows = (tile_rows - 1) * stride + kernel;
  static constexpr int pitch = ((tile_columns - 1) * step + 8 * eights + 1) / 2 * 2;  // numbers of a row of the tile
};

/// Number e of row r of a tile that begins at a pixel of the image.
struct ImageTile {
  const bfloat16* from;
  std::int64_t row_stride;
  int rows, numbers, first_row, first_number;
  __device__ ImageTile(const ConvJob& job, const Place& at)
      : from(data_of<const bfloat16>(job.in) + at.sample * job.in.sample_stride),
        row_stride(job.in.row_stride),
        rows(job.in_rows),
        numbers(job.in_columns * colors),
        first_row(at.row * job.stride + job.top),
        first_number((at.column * job.stride + job.left) * colors) {}
  __device__ bfloat16 get(int r, int e) const {
    const int row = first_row + r, number = first_number + e;
    const bool there = 0 <= row && row < rows && 0 <= number && number < numbers;
    return there ? from[row * row_stride + number] : narrow<bfloat16>(0.0f);
  }
};

/// [outputs / (8·tiles)][row of the window][8 numbers][thread][tiles] pairs of numbers.
template <class W, int tiles>
__global__ void arrange_image_weights_kernel(ConvWeights weights, int outputs, bfloat16* to) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= outputs * W::kernel * W::eights * 8) return;
  const int e = i % 2, j = i / 2 % tiles, thread = i / 2 / tiles % 32, at = i / 2 / tiles / 32;
  const int eight = at % W::eights, row = at / W::eights % W::kernel, chunk = at / W::eights / W::kernel;
  const int number = eight * 8 + 2 * (thread % 4) + e, n = thread / 4;
  const int out = chunk * 8 * tiles + output_of(tiles, j, n);
  to[i] = number < W::numbers ? static_cast<const bfloat16*>(
                                    weights.data)[out * weights.out_stride + number % colors * weights.in_stride +
                                                  row * weights.row_stride + number / colors * weights.column_stride]
                              : narrow<bfloat16>(0.0f);
}

constexpr int image_threads = 256;  // a warp makes 16 columns of two rows

template <class W, int tiles>
__global__ void __launch_bounds__(image_threads, 2)
    conv_of_image_kernel(ConvJob job, const unsigned* __restrict__ weights, int across, int down) {
  // Pairs are read 4 bytes at a time. Where windows begin at odd numbers, these find theirs in a copy one number on.
  constexpr int copies = W::step % 2 + 1, size = W::in_rows * W::pitch;
  __shared__ __align__(16) bfloat16 image[copies][size];
  const Place at(blockIdx.x, across, down, tile_rows);
  const ImageTile source(job, at);
  for (int i = threadIdx.x; i < size; i += image_threads) {
    const bfloat16 x = source.get(i / W::pitch, i % W::pitch);
    image[0][i] = x;
    if (copies == 2) image[copies - 1][i > 0 ? i - 1 : size - 1] = x;
  }
  __syncthreads();

  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int first_row = warp / 2 * 2, first_column = warp % 2 * group;
  // The first window of this thread; the second is 8 further, an even number of numbers.
  const int begin = first_row * W::stride * W::pitch + (first_column + lane / 4) * W::step;
  const unsigned* const seen = reinterpret_cast<const unsigned*>(image[begin % 2 % copies]) + begin / 2 + lane % 4;
  for (int chunk = 0; chunk < job.out_channels / (8 * tiles); ++chunk) {
    float sums[2][tiles][4] = {};
#pragma unroll 1
    for (int row = 0; row < W::kernel; ++row) {
#pragma unroll
      for (int eight = 0; eight < W::eights; ++eight) {
        unsigned w[tiles];
        const unsigned* const from = weights + (((chunk * W::kernel + row) * W::eights + eight) * 32 + lane) * tiles;
        if constexpr (tiles == 2) {
          const uint2 two = *reinterpret_cast<const uint2*>(from);
          w[0] = two.x, w[1] = two.y;
        } else {
          read_row(from, w);
        }
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const unsigned* const window = seen + ((r * W::stride + row) * W::pitch + eight * 8) / 2;
          const unsigned a0 = window[0], a1 = window[8 * W::step / 2];
#pragma unroll
          for (int j = 0; j < tiles; ++j) multiply_add_8(sums[r][j], a0, a1, w[j]);
        }
      }
    }
    bfloat16* const out = data_of<bfloat16>(job.out) + at.sample * job.out.sample_stride;
    const int column = at.column + first_column;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = at.row + first_row + r;
      if (row < job.out_rows)
        store_outputs<tiles>(
            sums[r], out + row * job.out.row_stride + std::int64_t{column} * job.out_channels + chunk * 8 * tiles,
            job.out_channels, job.out_columns - column, lane);
    }
  }
}

// ---- The gradient of the weights: products of 16 outputs × 16 windows and 16 windows × 8 numbers ----

constexpr int image_weights_threads = 128;

template <class W, int outputs>
struct ImageWeightsShape {
  // Pairs of a number and the same one of the next window.
  static constexpr int image_bytes = (W::in_rows * W::pitch * 4 + 127) / 128 * 128;
  static constexpr int gradient_bytes = tile_rows * tile_columns * outputs * 2;
  static constexpr int count = outputs * W::kernel * W::numbers;
  static constexpr int bytes = image_bytes + gradient_bytes > count * 4 ? image_bytes + gradient_bytes : count * 4;
};

/// Leaves partials[block][output][row][number of the row]. A warp keeps to 16 outputs.
template <class W, int outputs>
__global__ void __launch_bounds__(image_weights_threads, 4)
    conv_of_image_weights_kernel(ConvJob job, int across, int down, std::int64_t tiles, float* partials) {
  using Gradient = Tile<outputs>;
  using Shape = ImageWeightsShape<W, outputs>;
  constexpr int slices = outputs / group, parts = image_weights_threads / 32 / slices;
  constexpr int columns = tile_columns / group, units = columns * tile_rows;
  extern __shared__ __align__(128) unsigned char memory[];
  unsigned* const pairs = reinterpret_cast<unsigned*>(memory);
  const unsigned gradient_tile = shared_address(memory) + Shape::image_bytes;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, slice = warp % slices, part = warp / slices;

  float sums[W::kernel][W::eights][4] = {};
  for (std::int64_t t = blockIdx.x; t < tiles; t += gridDim.x) {
    const Place at(t, across, down, tile_rows);
    Gradient::template fetch<tile_rows, tile_columns, image_weights_threads>(
        gradient_tile, data_of<const bfloat16>(job.out) + at.sample * job.out.sample_stride, job.out.row_stride,
        job.out_channels, job.out_rows, job.out_columns, at.row, at.column);
    const ImageTile source(job, at);
    for (int i = threadIdx.x; i < W::in_rows * W::pitch; i += image_weights_threads) {
      const int r = i / W::pitch, e = i % W::pitch;
      const unsigned low = __bfloat16_as_ushort(source.get(r, e)),
                     high = __bfloat16_as_ushort(source.get(r, e + W::step));
      pairs[i] = low | high << 16;
    }
    wait_for_copies();
    __syncthreads();
    for (int unit = part; unit < units; unit += parts) {
      const int row = unit / columns, column = unit % columns * group;
      const int m = lane / 8;
      unsigned gradient[4];
      load_transposed(gradient, gradient_tile + Gradient::place(row * tile_columns + column + lane % 8 + 8 * (m / 2),
                                                                2 * slice + m % 2));
      const unsigned* const windows =
          pairs + row * W::stride * W::pitch + (column + 2 * (lane % 4)) * W::step + lane / 4;
#pragma unroll
      for (int r = 0; r < W::kernel; ++r)
#pragma unroll
        for (int eight = 0; eight < W::eights; ++eight) {
          const unsigned* const at_number = windows + r * W::pitch + eight * 8;
          multiply_add(sums[r][eight], gradient, at_number[0], at_number[8 * W::step]);
        }
    }
    __syncthreads();  // all have read the tile
  }

  // The warps of one slice add up in the order of their parts.
  float* const total = reinterpret_cast<float*>(memory);
  for (int p = 0; p < parts; ++p) {
    if (p == part) {
#pragma unroll
      for (int r = 0; r < W::kernel; ++r)
#pragma unroll
        for (int eight = 0; eight < W::eights; ++eight)
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const int out = slice * group + lane / 4 + 8 * (e / 2), number = eight * 8 + 2 * (lane % 4) + e % 2;
            if (number >= W::numbers) continue;
            float& sum = total[(out * W::kernel + r) * W::numbers + number];
            sum = p == 0 ? sums[r][eight][e] : sum + sums[r][eight][e];
          }
    }
    __syncthreads();
  }
  float* const mine = partials + std::int64_t{blockIdx.x} * Shape::count;
  for (int i = threadIdx.x; i < Shape::count; i += image_weights_threads) mine[i] = total[i];
}

template <class Body>
void with_window(const ConvJob& job, const Body& body) {
  if (job.kernel == 7 && job.stride == 2) return body(Window<7, 2>{});
  if (job.kernel == 3 && job.stride == 1) return body(Window<3, 1>{});
  if (job.kernel == 3 && job.stride == 2) return body(Window<3, 2>{});
  throw std::logic_error("no kernel for images with this window");
}

template <class W, int tiles>
void run_conv_of_image(const ConvJob& job, const ConvWeights& weights, void* arranged, void* stream) {
  const int room = conv_of_image_room(job), across = tiles_across(job), down = tiles_down(job, tile_rows);
  launch("arrange_image_weights", arrange_image_weights_kernel<W, tiles>, dim3((room + 255) / 256), dim3(256), stream,
         weights, job.out_channels, static_cast<bfloat16*>(arranged));
  launch("conv_of_image", conv_of_image_kernel<W, tiles>, dim3(static_cast<unsigned>(across) * down * job.samples),
         dim3(image_threads), stream, job, static_cast<const unsigned*>(arranged), across, down);
}

template <class W, int outputs>
void run_conv_of_image_weights(const ConvJob& job, int blocks, float* partials, void* stream) {
  using Shape = ImageWeightsShape<W, outputs>;
  const int across = tiles_across(job), down = tiles_down(job, tile_rows);
  const auto kernel = conv_of_image_weights_kernel<W, outputs>;
  allow(kernel, Shape::bytes);
  kernel<<<dim3(blocks), dim3(image_weights_threads), Shape::bytes, static_cast<cudaStream_t>(stream)>>>(
      job, across, down, std::int64_t{across} * down * job.samples, partials);
  check(cudaGetLastError(), "conv_of_image_weights");
}

}  // namespace

int conv_of_image_room(const ConvJob& job) {
  return job.out_channels * job.kernel * ((job.kernel * colors + 7) / 8) * 8;
}

void conv_of_image(const ConvJob& job, const ConvWeights& weights, void* arranged, void* stream) {
  with_window(job, [&](auto window) {
    using W = decltype(window);
    if (job.out_channels % 64 == 0) return run_conv_of_image<W, 8>(job, weights, arranged, stream);
    run_conv_of_image<W, 2>(job, weights, arranged, stream);
  });
}

int conv_of_image_blocks(const ConvJob& job) { return weight_blocks(job, tile_rows); }

void conv_of_image_weights(const ConvJob& job, float* partials, const ConvWeights& gradient, void* stream) {
  const int blocks = conv_of_image_blocks(job);
  with_window(job, [&](auto window) {
    using W = decltype(window);
    if (job.out_channels == 16) return run_conv_of_image_weights<W, 16>(job, blocks, partials, stream);
    if (job.out_channels == 32) return run_conv_of_image_weights<W, 32>(job, blocks, partials, stream);
    if (job.out_channels == 64) return run_conv_of_image_weights<W, 64>(job, blocks, partials, stream);
    throw std::logic_error("no kernel for images with this many outputs");
  });
  add_weights(partials, blocks, job, gradient, stream);
}

}  // namespace tessera::gpu
