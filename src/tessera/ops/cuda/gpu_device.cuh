// What the kernels share: numbers, groups of them, and how threads are dealt out.
//
// A thread keeps to one group of channels (16 bytes where that is possible) and goes down the pixels, so that
// coefficients stay in registers and no index is divided:
//
//                 channels
//              g0   g1   g2  ...        block: `groups` threads side by side, as many pixels as fit below each other
//     pixel 0  t0   t1   t2  ...        grid:  x over pixels, y over channels where a block is too narrow
//     pixel 1  t8   t9   ...
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "tessera/ops/cuda/gpu_kernels.h"

namespace tessera::gpu {

constexpr int block_threads = 256;

using bfloat16 = __nv_bfloat16;

template <class T>
struct AccumulatorOf {
  using type = T;
};
template <>
struct AccumulatorOf<bfloat16> {
  using type = float;
};
template <class T>
using Accumulator = typename AccumulatorOf<T>::type;

template <class T>
__device__ inline Accumulator<T> wide(T x) {
  return x;
}
template <>
__device__ inline float wide<bfloat16>(bfloat16 x) {
  return __bfloat162float(x);
}
template <class T>
__device__ inline T narrow(Accumulator<T> x) {
  return x;
}
template <>
__device__ inline bfloat16 narrow<bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}

/// Adjacent numbers that are read and written at once.
template <class T, int count>
struct alignas(sizeof(T) * count) Pack {
  T values[count];
};
template <class T>
constexpr int vector_count = 16 / static_cast<int>(sizeof(T));

template <class T, int count>
__device__ inline Pack<T, count> load(const T* from) {
  return *reinterpret_cast<const Pack<T, count>*>(from);
}
template <class T, int count>
__device__ inline void store(T* to, const Pack<T, count>& pack) {
  *reinterpret_cast<Pack<T, count>*>(to) = pack;
}

/// `count` adjacent numbers of a table, 16 bytes at a time where they are that long.
template <class T, int count>
__device__ inline void read_row(const T* from, T (&row)[count]) {
  constexpr int most = 16 / static_cast<int>(sizeof(T)), width = count % most == 0 ? most : 1;
#pragma unroll
  for (int i = 0; i < count; i += width) {
    const Pack<T, width> pack = load<T, width>(from + i);
#pragma unroll
    for (int j = 0; j < width; ++j) row[i + j] = pack.values[j];
  }
}

/// How the threads of a pass are dealt out, and where a pixel is.
struct Walk {
  std::uint32_t pixels, rows, width, channels;
  std::uint32_t groups;  ///< of channels, over all blocks
  bool dense;

  __device__ std::int64_t offset(const View& view, std::uint32_t pixel) const {
    if (dense) return std::int64_t{pixel} * channels;
    const std::uint32_t row = pixel / width, sample = row / rows;
    return sample * view.sample_stride + (row - sample * rows) * view.row_stride +
           std::int64_t{pixel - row * width} * channels;
  }
};

template <class T>
__device__ inline T* data_of(const View& view) {
  return static_cast<T*>(view.data);
}

struct Shape2 {
  dim3 grid, block;
};

inline void check(cudaError_t code, const char* what) {
  if (code != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(code));
}

/// Of the current GPU. A machine's GPUs are taken to be alike.
inline int multiprocessors() {
  static const int count = [] {
    int device = 0, found = 0;
    check(cudaGetDevice(&device), "cudaGetDevice");
    check(cudaDeviceGetAttribute(&found, cudaDevAttrMultiProcessorCount, device), "cudaDeviceGetAttribute");
    return found;
  }();
  return count;
}

inline Walk walk_of(const Field& f, int per_group) {
  return {f.pixels(), f.rows, f.width, f.channels, (f.channels + per_group - 1) / per_group, f.dense};
}

/// At most `blocks_each` blocks for a multiprocessor, unless one pixel is too wide for a block.
inline Shape2 shape_of(std::uint32_t pixels, std::uint32_t groups, int blocks_each) {
  const std::uint32_t across = std::min<std::uint32_t>(groups, block_threads), down = block_threads / across;
  const std::uint32_t most = static_cast<std::uint32_t>(multiprocessors() * blocks_each);
  const std::uint32_t along = std::max<std::uint32_t>(1, std::min((pixels + down - 1) / down, most));
  return {dim3(along, (groups + across - 1) / across), dim3(across, down)};
}

template <class Kernel, class... Args>
void launch(const char* name, Kernel kernel, dim3 grid, dim3 block, void* stream, const Args&... args) {
  kernel<<<grid, block, 0, static_cast<cudaStream_t>(stream)>>>(args...);
  check(cudaGetLastError(), name);
}

/// Calls body(T{}, count) with the number's type and how many of them a thread takes at once, as a constant.
template <int count>
struct Count {
  static constexpr int value = count;
};
template <class Body>
void dispatch(Number number, bool vector, const Body& body) {
  switch (number) {
    case Number::float32:
      return vector ? body(float{}, Count<vector_count<float>>{}) : body(float{}, Count<1>{});
    case Number::float64:
      return vector ? body(double{}, Count<vector_count<double>>{}) : body(double{}, Count<1>{});
    case Number::bfloat16:
      return vector ? body(bfloat16{}, Count<vector_count<bfloat16>>{}) : body(bfloat16{}, Count<1>{});
  }
}

}  // namespace tessera::gpu
