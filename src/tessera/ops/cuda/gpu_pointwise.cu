// Batch norm, add and ReLU on the GPU, forward: the passes of pointwise.h.
#include "tessera/ops/cuda/gpu_pointwise.cuh"

namespace tessera::gpu {
namespace {

constexpr int unroll = 4;

/// The i-th of four pixels.
__device__ inline std::uint32_t far_apart(const Walk& walk, std::uint32_t i) {
  return static_cast<std::uint32_t>((std::uint64_t{walk.pixels} * (2 * i + 1)) / 8);
}

/// A guess at the means of adjacent channels from four pixels far apart: sums of deviations from it lose no digits.
template <class T, int count>
__device__ void guess_means(const Walk& walk, const View& x, std::uint32_t first, Accumulator<T> (&means)[count]) {
  Pack<T, count> packs[4];
#pragma unroll
  for (std::uint32_t i = 0; i < 4; ++i)
    packs[i] = load<T, count>(data_of<const T>(x) + walk.offset(x, far_apart(walk, i)) + first);
#pragma unroll
  for (int c = 0; c < count; ++c) {
    means[c] = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) means[c] += wide<T>(packs[i].values[c]);
    means[c] /= 4;
  }
}

template <class T, int count>
__global__ void moments_kernel(Walk walk, View x, Accumulator<T>* partials) {
  using A = Accumulator<T>;
  const std::uint32_t group = blockIdx.y * blockDim.x + threadIdx.x, first = group * count;
  A sums[2][count] = {}, pivot[count];
  if (group < walk.groups) {
    guess_means<T, count>(walk, x, first, pivot);
    const T* from = data_of<const T>(x) + first;
    const auto read = [&](std::uint32_t pixel) { return load<T, count>(from + walk.offset(x, pixel)); };
    const auto take = [&](const Pack<T, count>& pack, std::uint32_t) {
#pragma unroll
      for (int i = 0; i < count; ++i) {
        const A d = wide<T>(pack.values[i]) - pivot[i];
        sums[0][i] += d;
        sums[1][i] += d * d;
      }
    };
    down_the_pixels<unroll>(walk, read, take);
  }
  add_up<A, 2, count>(sums, walk, partials);
}

template <class T>
__global__ void finish_moments_kernel(Walk walk, View x, const Accumulator<T>* partials, int blocks, double* out) {
  double sums[2];
  add_partials(partials, blocks, 1, walk.channels, sums);
  const std::uint32_t channel = blockIdx.x * tile + threadIdx.x;
  if (threadIdx.y != 0 || channel >= walk.channels) return;
  const double count = walk.pixels, m2 = sums[1] - sums[0] * sums[0] / count;
  Accumulator<T> pivot[1];
  guess_means<T, 1>(walk, x, channel, pivot);
  out[1 + channel] = double(pivot[0]) + sums[0] / count;
  // A NaN stays one.
  out[1 + walk.channels + channel] = m2 < 0 ? 0 : m2;
  if (channel == 0) out[0] = count;
}

template <class A>
__global__ void finish_norm_kernel(NormJob job) {
  const std::uint32_t c = blockIdx.x * blockDim.x + threadIdx.x, channels = job.channels;
  if (c >= channels) return;
  double count = 0, mean = 0, m2 = 0;
  for (int r = 0; r < job.ranks; ++r) {
    const double* from = job.moments + r * job.rank_stride;
    const double more = from[0], total = count + more;
    if (more == 0) continue;
    const double delta = from[1 + c] - mean;
    m2 += from[1 + channels + c] + delta * delta * count * more / total;
    mean += delta * more / total;
    count = total;
  }
  const double deviation = 1.0 / sqrt(m2 / count + job.epsilon);
  A* const coefficients = static_cast<A*>(job.coefficients);
  coefficients[c] = static_cast<A>(mean);
  coefficients[channels + c] = static_cast<A>(double(static_cast<const A*>(job.weight)[c]) * deviation);
  coefficients[2 * channels + c] = static_cast<const A*>(job.bias)[c];
  job.deviation[c] = deviation;
  static_cast<A*>(job.mean_sum)[c] += static_cast<A>(job.statistics_weight * mean);
  static_cast<A*>(job.variance_sum)[c] += static_cast<A>(job.statistics_weight * m2 / (count - 1));
  if (c != 0) return;
  job.deviation[channels] = count;
  *static_cast<A*>(job.count_sum) += static_cast<A>(job.share);
}

template <class T, int count, int terms, bool moments>
__global__ void __launch_bounds__(block_threads, 2)
    affine_sum_kernel(Walk walk, AffineSumJob job, Accumulator<T>* partials) {
  using A = Accumulator<T>;
  constexpr int ahead = moments ? 2 : unroll;
  const std::uint32_t group = blockIdx.y * blockDim.x + threadIdx.x, first = group * count;
  A sums[2][count] = {};
  if (group < walk.groups) {
    Coefficients<A, count> k[terms];
#pragma unroll
    for (int t = 0; t < terms; ++t) k[t].read(job.term[t].coefficients, walk.channels, first);
    struct Read {
      Pack<T, count> x[terms];
    };
    const auto read = [&](std::uint32_t pixel) {
      Read r;
#pragma unroll
      for (int t = 0; t < terms; ++t)
        r.x[t] = load<T, count>(data_of<const T>(job.term[t].x) + first + walk.offset(job.term[t].x, pixel));
      return r;
    };
    const auto make = [&](const Read& r) {
      Pack<T, count> result;
#pragma unroll
      for (int i = 0; i < count; ++i) {
        A v = k[0].apply(wide<T>(r.x[0].values[i]), i);
        if constexpr (terms == 2) v += k[1].apply(wide<T>(r.x[1].values[i]), i);
        // NaN is not below zero, so it goes through ReLU and reaches the loss.
        result.values[i] = narrow<T>(job.relu && v < A(0) ? A(0) : v);
      }
      return result;
    };
    A pivot[count] = {};
    if constexpr (moments) {
      // What guess_means() will find in the output.
#pragma unroll
      for (std::uint32_t i = 0; i < 4; ++i) {
        const Pack<T, count> made = make(read(far_apart(walk, i)));
#pragma unroll
        for (int c = 0; c < count; ++c) pivot[c] += wide<T>(made.values[c]);
      }
#pragma unroll
      for (int c = 0; c < count; ++c) pivot[c] /= 4;
    }
    const auto put = [&](const Read& r, std::uint32_t pixel) {
      const Pack<T, count> made = make(r);
      store<T, count>(data_of<T>(job.out) + first + walk.offset(job.out, pixel), made);
      if constexpr (moments) {
#pragma unroll
        for (int i = 0; i < count; ++i) {
          const A d = wide<T>(made.values[i]) - pivot[i];
          sums[0][i] += d;
          sums[1][i] += d * d;
        }
      }
    };
    down_the_pixels<ahead>(walk, read, put);
  }
  if constexpr (moments) add_up<A, 2, count>(sums, walk, partials);
}

template <class T>
void finish_moments(const Walk& walk, const View& x, const Shape2& shape, void* partials, double* out, void* stream) {
  launch("finish_moments", finish_moments_kernel<T>, dim3((walk.channels + tile - 1) / tile), dim3(tile, tile), stream,
         walk, x, static_cast<const Accumulator<T>*>(partials), static_cast<int>(shape.grid.x), out);
}

}  // namespace

int reduction_blocks(const Field& field) { return static_cast<int>(sum_shape(field).grid.x); }

void moments(const Field& f, const View& x, void* partials, double* out, void* stream) {
  dispatch(f.number, f.vector, [&](auto number, auto count) {
    using T = decltype(number);
    const Shape2 shape = sum_shape(f);
    launch("moments", moments_kernel<T, decltype(count)::value>, shape.grid, shape.block, stream,
           walk_of(f, decltype(count)::value), x, static_cast<Accumulator<T>*>(partials));
    finish_moments<T>(walk_of(f, decltype(count)::value), x, shape, partials, out, stream);
  });
}

void finish_norm(Number number, const NormJob& job, void* stream) {
  dispatch_sums(number, [&](auto a) {
    launch("finish_norm", finish_norm_kernel<decltype(a)>, by_channel(job.channels), dim3(128), stream, job);
  });
}

void affine_sum(const Field& f, const AffineSumJob& job, void* stream) {
  dispatch(f.number, f.vector, [&](auto number, auto count) {
    using T = decltype(number);
    constexpr int each = decltype(count)::value;
    const Walk walk = walk_of(f, each);
    const Shape2 shape = job.moments ? sum_shape(f) : shape_of(f.pixels(), walk.groups, map_blocks_each);
    const auto run = [&](auto kernel) {
      launch("affine_sum", kernel, shape.grid, shape.block, stream, walk, job,
             static_cast<Accumulator<T>*>(job.partials));
    };
    const bool two = job.term[1].x.data != nullptr;
    if (!job.moments)
      return two ? run(affine_sum_kernel<T, each, 2, false>) : run(affine_sum_kernel<T, each, 1, false>);
    two ? run(affine_sum_kernel<T, each, 2, true>) : run(affine_sum_kernel<T, each, 1, true>);
    finish_moments<T>(walk, job.out, shape, job.partials, job.moments, stream);
  });
}

}  // namespace tessera::gpu
