// Products on tensor cores, and tiles of pixels in shared memory to feed them from.
#pragma once

#include "tessera/ops/cuda/gpu_device.cuh"

namespace tessera::gpu {

// GPUs before compute capability 8.0 have no bfloat16; has_bfloat16() keeps these kernels away from them.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#define TESSERA_TENSOR_CORES(...) __trap()
#else
#define TESSERA_TENSOR_CORES(...) __VA_ARGS__
#endif

constexpr int tile_columns = 32;
constexpr int group = 16;  ///< pixels, channels or outputs of one product

__device__ inline unsigned shared_address(const void* p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }
/// 16 bytes on their way to shared memory; zeros where there is nothing to read.
__device__ inline void copy_16(unsigned to, const void* from, bool there) {
  TESSERA_TENSOR_CORES(
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0)));
}
__device__ inline void wait_for_copies() { TESSERA_TENSOR_CORES(asm volatile("cp.async.wait_all;" ::: "memory")); }

__device__ inline void load_matrices(unsigned (&to)[4], unsigned from) {
  TESSERA_TENSOR_CORES(asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                                    : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                                    : "r"(from)
                                    : "memory"));
}
__device__ inline void load_transposed(unsigned (&to)[4], unsigned from) {
  TESSERA_TENSOR_CORES(asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                                    : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                                    : "r"(from)
                                    : "memory"));
}
__device__ inline void multiply_add(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  TESSERA_TENSOR_CORES(
      asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
          : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1)));
}

/// A tile in shared memory, pixel after pixel, each in pieces of 16 bytes. The pieces of 8 neighbours that are read
/// together are turned so that they lie in different banks.
template <int channels>
struct Tile {
  static constexpr int pieces = channels / 8, bytes_each = 2 * channels;
  __device__ static unsigned place(int pixel, int piece) {
    return static_cast<unsigned>(pixel * bytes_each + ((piece ^ (pixel / (8 / pieces) % pieces)) * 16));
  }
  /// Rows and columns count from those of `view`; what lies outside of it is zero. `pitch`: numbers from one pixel to
  /// the next, where the view has more channels than the tile.
  template <int tile_rows, int columns, int threads>
  __device__ static void fetch(unsigned to, const bfloat16* from, std::int64_t row_stride, int pitch, int rows,
                               int width, int first_row, int first_column) {
    for (int i = threadIdx.x; i < tile_rows * columns * pieces; i += threads) {
      const int piece = i % pieces, pixel = i / pieces;
      const int row = first_row + pixel / columns, column = first_column + pixel % columns;
      const bool there = 0 <= row && row < rows && 0 <= column && column < width;
      const bfloat16* const source = from + row * row_stride + std::int64_t{column} * pitch + piece * 8;
      copy_16(to + place(pixel, piece), there ? source : from, there);
    }
  }
};

/// Which tile of which sample a number stands for: along the rows first.
struct Place {
  int sample, row, column;
  __device__ Place(std::int64_t tile, int across, int down, int tile_rows) {
    column = static_cast<int>(tile % across) * tile_columns;
    row = static_cast<int>(tile / across % down) * tile_rows;
    sample = static_cast<int>(tile / across / down);
  }
};

/// Which output column n of the j-th of `tiles` products stands for, so that the outputs of a thread are neighbours: a
/// thread has columns 2·(lane % 4) and the next, and writes up to 16 bytes at once.
__host__ __device__ constexpr int at_once(int tiles) { return tiles < 4 ? tiles : 4; }
__host__ __device__ constexpr int output_of(int tiles, int j, int n) {
  const int w = at_once(tiles);
  return 8 * w * (j / w) + 2 * w * (n / 2) + 2 * (j % w) + n % 2;
}

/// A thread's outputs of the pixels lane / 4 and lane / 4 + 8 of a group; `to` is where the group's outputs begin.
template <int tiles>
__device__ inline void store_outputs(const float (&sums)[tiles][4], bfloat16* to, int pitch, int columns, int lane) {
  constexpr int w = at_once(tiles);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int column = lane / 4 + 8 * half;
    if (column >= columns) continue;
#pragma unroll
    for (int j = 0; j < tiles; j += w) {
      Pack<bfloat16, 2 * w> pack;
#pragma unroll
      for (int i = 0; i < 2 * w; ++i) pack.values[i] = narrow<bfloat16>(sums[j + i / 2][2 * half + i % 2]);
      store<bfloat16, 2 * w>(to + std::int64_t{column} * pitch + 8 * j + 2 * w * (lane % 4), pack);
    }
  }
}

/// Adds the blocks' sums, each [out][tap][channel], to the gradient; 32 numbers a block, in a fixed order.
static __global__ void add_weights_kernel(const float* partials, int blocks, int channels, int kernel, int count,
                                          ConvWeights to) {
  __shared__ double shared[32][33];
  const int i = blockIdx.x * 32 + threadIdx.x;
  double sum = 0;
  if (i < count)
    for (int b = threadIdx.y; b < blocks; b += 32) sum += partials[std::int64_t{b} * count + i];
  shared[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || i >= count) return;
  sum = 0;
  for (int y = 0; y < 32; ++y) sum += shared[y][threadIdx.x];
  const int in = i % channels, tap = i / channels % (kernel * kernel), out = i / channels / (kernel * kernel);
  static_cast<float*>(to.data)[out * to.out_stride + in * to.in_stride + tap / kernel * to.row_stride +
                               tap % kernel * to.column_stride] += static_cast<float>(sum);
}

inline void add_weights(const float* partials, int blocks, const ConvJob& job, const ConvWeights& gradient,
                        void* stream) {
  const int count = job.kernel * job.kernel * job.in_channels * job.out_channels;
  launch("add_weights", add_weights_kernel, dim3((count + 31) / 32), dim3(32, 32), stream, partials, blocks,
         job.in_channels, job.kernel, count, gradient);
}

inline int tiles_across(const ConvJob& job) { return (job.out_columns + tile_columns - 1) / tile_columns; }
inline int tiles_down(const ConvJob& job, int tile_rows) { return (job.out_rows + tile_rows - 1) / tile_rows; }

/// A gradient of weights is summed by this many blocks, each over many tiles.
inline int weight_blocks(const ConvJob& job, int tile_rows) {
  const auto tiles = std::int64_t{tiles_across(job)} * tiles_down(job, tile_rows) * job.samples;
  return static_cast<int>(std::min<std::int64_t>(tiles, 4 * multiprocessors()));
}

/// A kernel has to be told, on each GPU, that it may have this much shared memory; it costs little to say it again.
template <class Kernel>
void allow(Kernel kernel, int bytes) {
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "cudaFuncSetAttribute");
}

}  // namespace tessera::gpu
