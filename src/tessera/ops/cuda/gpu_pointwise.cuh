// What the passes of batch norm, add and ReLU share. They are bound by memory, so each reads what it needs once, 16
// bytes at a time, with several reads under way before the first is used.
#pragma once

#include "tessera/ops/cuda/gpu_device.cuh"

namespace tessera::gpu {

constexpr int sum_blocks_each = 4, map_blocks_each = 8;

/// Calls take(read(pixel), pixel) for this thread's pixels, with `ahead` reads under way before the first is used.
template <int ahead, class Read, class Take>
__device__ inline void down_the_pixels(const Walk& walk, const Read& read, const Take& take) {
  const std::uint32_t step = gridDim.x * blockDim.y;
  std::uint32_t pixel = blockIdx.x * blockDim.y + threadIdx.y;
  for (; std::uint64_t{pixel} + std::uint64_t{ahead - 1} * step < walk.pixels; pixel += ahead * step) {
    decltype(read(pixel)) reads[ahead];
#pragma unroll
    for (int u = 0; u < ahead; ++u) reads[u] = read(pixel + u * step);
#pragma unroll
    for (int u = 0; u < ahead; ++u) take(reads[u], pixel + u * step);
  }
  for (; pixel < walk.pixels; pixel += step) take(read(pixel), pixel);
}

/// The coefficients of an affine term for one group of channels.
template <class A, int count>
struct Coefficients {
  A mean[count], scale[count], shift[count];
  __device__ void read(const void* from, std::uint32_t channels, std::uint32_t first) {
    if (const A* values = static_cast<const A*>(from)) {
      read_row(values + first, mean);
      read_row(values + channels + first, scale);
      read_row(values + 2 * channels + first, shift);
      return;
    }
#pragma unroll
    for (int i = 0; i < count; ++i) {
      mean[i] = shift[i] = A(0);
      scale[i] = A(1);
    }
  }
  __device__ A apply(A x, int i) const { return (x - mean[i]) * scale[i] + shift[i]; }
};

/// Adds up what the threads of a block have for the same channels, in a fixed order, and leaves it at
/// partials[block][kind][channel].
template <class A, int kinds, int count>
__device__ void add_up(const A (&mine)[kinds][count], const Walk& walk, A* partials) {
  constexpr int values = kinds * count;
  __shared__ A shared[values * block_threads];
  const int across = blockDim.x, down = blockDim.y, thread = threadIdx.y * across + threadIdx.x;
#pragma unroll
  for (int k = 0; k < kinds; ++k)
#pragma unroll
    for (int i = 0; i < count; ++i) shared[(k * count + i) * block_threads + thread] = mine[k][i];
  __syncthreads();
  for (int out = thread; out < values * across; out += across * down) {
    const int value = out / across, x = out % across;
    A sum = 0;
    for (int y = 0; y < down; ++y) sum += shared[value * block_threads + y * across + x];
    const std::uint32_t group = blockIdx.y * across + x;
    if (group < walk.groups)
      partials[(std::size_t(blockIdx.x) * kinds + value / count) * walk.channels + group * count + value % count] = sum;
  }
}

constexpr int tile = 32;  ///< of the kernels that add up partials

/// The sums of all blocks for the channel and the pair of kinds of this thread, in double; right where threadIdx.y is
/// 0.
template <class A>
__device__ void add_partials(const A* partials, int blocks, int pairs, std::uint32_t channels, double (&sums)[2]) {
  __shared__ double shared[2][tile][tile + 1];
  const std::uint32_t channel = blockIdx.x * tile + threadIdx.x;
  double mine[2] = {0, 0};
  if (channel < channels)
    for (int b = threadIdx.y; b < blocks; b += tile)
      for (int k = 0; k < 2; ++k)
        mine[k] += partials[(std::size_t(b) * 2 * pairs + 2 * blockIdx.y + k) * channels + channel];
  for (int k = 0; k < 2; ++k) shared[k][threadIdx.y][threadIdx.x] = mine[k];
  __syncthreads();
  for (int half = tile / 2; half > 0; half /= 2) {
    if (static_cast<int>(threadIdx.y) < half)
      for (int k = 0; k < 2; ++k) shared[k][threadIdx.y][threadIdx.x] += shared[k][threadIdx.y + half][threadIdx.x];
    __syncthreads();
  }
  for (int k = 0; k < 2; ++k) sums[k] = shared[k][0][threadIdx.x];
}

template <class A>
__global__ void finish_sums_kernel(std::uint32_t channels, const A* partials, int blocks, int terms, double* out) {
  double sums[2];
  add_partials(partials, blocks, terms, channels, sums);
  const std::uint32_t channel = blockIdx.x * tile + threadIdx.x;
  if (threadIdx.y != 0 || channel >= channels) return;
  for (int k = 0; k < 2; ++k) out[(2 * blockIdx.y + k) * channels + channel] = sums[k];
}

/// The means of an affine term; zeros where it has no coefficients.
template <class A, int count>
__device__ inline void read_means(const void* coefficients, std::uint32_t first, A (&means)[count]) {
  if (const A* values = static_cast<const A*>(coefficients)) return read_row(values + first, means);
#pragma unroll
  for (int i = 0; i < count; ++i) means[i] = A(0);
}

inline Shape2 sum_shape(const Field& f) {
  const int per_group = !f.vector ? 1 : f.number == Number::bfloat16 ? 8 : f.number == Number::float32 ? 4 : 2;
  return shape_of(f.pixels(), (f.channels + per_group - 1) / per_group, sum_blocks_each);
}

/// Calls body(A{}) with the type of the sums.
template <class Body>
void dispatch_sums(Number number, const Body& body) {
  number == Number::float64 ? body(double{}) : body(float{});
}

inline dim3 by_channel(std::uint32_t channels) { return dim3((channels + 127) / 128); }

}  // namespace tessera::gpu
