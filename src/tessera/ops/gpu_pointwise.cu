// Batch norm, add and ReLU on the GPU: the passes of pointwise.h. They are bound by memory, so each reads what it needs
// once, 16 bytes at a time, with several reads under way before the first is used.
#include "tessera/ops/gpu_device.cuh"

namespace tessera::gpu {
namespace {

constexpr int unroll = 4;
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

constexpr int tile = 32;

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

enum class MaskKind { none, output, term };

template <class T, int count, int terms, MaskKind mask>
__global__ void __launch_bounds__(block_threads, 2)
    gradient_sums_kernel(Walk walk, GradientSumsJob job, Accumulator<T>* partials) {
  using A = Accumulator<T>;
  constexpr int ahead = terms < 2 ? 4 : 2;
  const std::uint32_t group = blockIdx.y * blockDim.x + threadIdx.x, first = group * count;
  constexpr int kinds = terms > 0 ? 2 * terms : 1;
  A sums[kinds][count] = {};
  if (group < walk.groups) {
    Coefficients<A, count> by;
    if constexpr (mask == MaskKind::term) by.read(job.mask.coefficients, walk.channels, first);
    A mean[terms > 0 ? terms : 1][count];
#pragma unroll
    for (int t = 0; t < terms; ++t) read_row(static_cast<const A*>(job.term[t].coefficients) + first, mean[t]);
    struct Read {
      Pack<T, count> dy0, dy1, output, x[2];
    };
    const auto read = [&](std::uint32_t pixel) {
      Read r;
      r.dy0 = load<T, count>(data_of<const T>(job.gradients[0]) + first + walk.offset(job.gradients[0], pixel));
      if (job.gradients[1].data)
        r.dy1 = load<T, count>(data_of<const T>(job.gradients[1]) + first + walk.offset(job.gradients[1], pixel));
      if constexpr (mask == MaskKind::output)
        r.output = load<T, count>(data_of<const T>(job.output) + first + walk.offset(job.output, pixel));
      // A mask by a term belongs to the first one.
      if constexpr (terms > 0)
        r.x[0] = load<T, count>(data_of<const T>(job.term[0].x) + first + walk.offset(job.term[0].x, pixel));
      else if constexpr (mask == MaskKind::term)
        r.x[0] = load<T, count>(data_of<const T>(job.mask.x) + first + walk.offset(job.mask.x, pixel));
      if constexpr (terms > 1)
        r.x[1] = load<T, count>(data_of<const T>(job.term[1].x) + first + walk.offset(job.term[1].x, pixel));
      return r;
    };
    const auto take = [&](const Read& r, std::uint32_t pixel) {
      Pack<T, count> written;
#pragma unroll
      for (int i = 0; i < count; ++i) {
        A v = wide<T>(r.dy0.values[i]);
        if (job.gradients[1].data) v += wide<T>(r.dy1.values[i]);
        if constexpr (mask == MaskKind::output) v = wide<T>(r.output.values[i]) <= A(0) ? A(0) : v;
        if constexpr (mask == MaskKind::term) v = by.apply(wide<T>(r.x[0].values[i]), i) <= A(0) ? A(0) : v;
        written.values[i] = narrow<T>(v);
#pragma unroll
        for (int t = 0; t < terms; ++t) {
          sums[2 * t][i] += v;
          sums[2 * t + 1][i] += v * (wide<T>(r.x[t].values[i]) - mean[t][i]);
        }
      }
      if (job.g.data) store<T, count>(data_of<T>(job.g) + first + walk.offset(job.g, pixel), written);
    };
    down_the_pixels<ahead>(walk, read, take);
  }
  if constexpr (terms > 0) add_up<A, kinds, count>(sums, walk, partials);
}

template <class A>
__global__ void finish_sums_kernel(std::uint32_t channels, const A* partials, int blocks, int terms, double* out) {
  double sums[2];
  add_partials(partials, blocks, terms, channels, sums);
  const std::uint32_t channel = blockIdx.x * tile + threadIdx.x;
  if (threadIdx.y != 0 || channel >= channels) return;
  for (int k = 0; k < 2; ++k) out[(2 * blockIdx.y + k) * channels + channel] = sums[k];
}

template <class A>
__global__ void finish_norm_gradient_kernel(NormGradientJob job) {
  const std::uint32_t c = blockIdx.x * blockDim.x + threadIdx.x, channels = job.channels;
  if (c >= channels) return;
  const double deviation = job.deviation[c], count = job.deviation[channels];
  const double scale = static_cast<const A*>(job.coefficients)[channels + c];
  static_cast<A*>(job.weight_gradient)[c] += static_cast<A>(job.own[channels + c] * deviation);
  static_cast<A*>(job.bias_gradient)[c] += static_cast<A>(job.own[c]);
  A* const result = static_cast<A*>(job.result);
  result[c] = static_cast<A>(scale);
  result[channels + c] = static_cast<A>(-scale * deviation * deviation * job.total[channels + c] / count);
  result[2 * channels + c] = static_cast<A>(-scale * job.total[c] / count);
}

template <class T, int count, bool masked, bool added>
__global__ void __launch_bounds__(block_threads, 2) affine_gradient_kernel(Walk walk, AffineGradientJob job) {
  using A = Accumulator<T>;
  const std::uint32_t group = blockIdx.y * blockDim.x + threadIdx.x, first = group * count;
  if (group >= walk.groups) return;
  Coefficients<A, count> k;
  k.read(job.term.coefficients, walk.channels, first);
  A a[count], b[count], c[count];
  const A* const result = static_cast<const A*>(job.result) + first;
  read_row(result, a);
  read_row(result + walk.channels, b);
  read_row(result + 2 * walk.channels, c);
#pragma unroll
  for (int i = 0; i < count; ++i) {
    b[i] = job.statistics ? b[i] : A(0);
    c[i] = job.statistics ? c[i] : A(0);
  }
  const T* const g = data_of<const T>(job.g) + first;
  const T* const x = data_of<const T>(job.term.x) + first;
  const T* const addend = data_of<const T>(job.addend) + first;
  T* const dx = data_of<T>(job.dx) + first;
  struct Read {
    Pack<T, count> g, x, addend;
  };
  const auto read = [&](std::uint32_t pixel) {
    Read r;
    r.g = load<T, count>(g + walk.offset(job.g, pixel));
    r.x = load<T, count>(x + walk.offset(job.term.x, pixel));
    if constexpr (added) r.addend = load<T, count>(addend + walk.offset(job.addend, pixel));
    return r;
  };
  const auto put = [&](const Read& r, std::uint32_t pixel) {
    Pack<T, count> out;
#pragma unroll
    for (int i = 0; i < count; ++i) {
      const A in = wide<T>(r.x.values[i]);
      A v = wide<T>(r.g.values[i]);
      if constexpr (masked) v = k.apply(in, i) <= A(0) ? A(0) : v;
      v = a[i] * v + (b[i] * (in - k.mean[i]) + c[i]);
      if constexpr (added) v += wide<T>(r.addend.values[i]);
      out.values[i] = narrow<T>(v);
    }
    store<T, count>(dx + walk.offset(job.dx, pixel), out);
  };
  constexpr int ahead = added ? 2 : 4;
  down_the_pixels<ahead>(walk, read, put);
}

Shape2 sum_shape(const Field& f) {
  const int per_group = !f.vector ? 1 : f.number == Number::bfloat16 ? 8 : f.number == Number::float32 ? 4 : 2;
  return shape_of(f.pixels(), (f.channels + per_group - 1) / per_group, sum_blocks_each);
}

template <class T>
void finish_moments(const Walk& walk, const View& x, const Shape2& shape, void* partials, double* out, void* stream) {
  launch("finish_moments", finish_moments_kernel<T>, dim3((walk.channels + tile - 1) / tile), dim3(tile, tile), stream,
         walk, x, static_cast<const Accumulator<T>*>(partials), static_cast<int>(shape.grid.x), out);
}

template <class T, int count, int terms>
void run_gradient_sums(const Field& f, const GradientSumsJob& job, void* stream) {
  using A = Accumulator<T>;
  const Shape2 shape = sum_shape(f);
  A* const partials = static_cast<A*>(job.partials);
  const auto run = [&](auto kernel) {
    launch("gradient_sums", kernel, shape.grid, shape.block, stream, walk_of(f, count), job, partials);
  };
  if (job.output.data)
    run(gradient_sums_kernel<T, count, terms, MaskKind::output>);
  else if constexpr (terms < 2) {
    if (job.mask_by_term)
      run(gradient_sums_kernel<T, count, terms, MaskKind::term>);
    else
      run(gradient_sums_kernel<T, count, terms, MaskKind::none>);
  } else {
    run(gradient_sums_kernel<T, count, terms, MaskKind::none>);
  }
  if constexpr (terms > 0)
    launch("finish_sums", finish_sums_kernel<A>, dim3((f.channels + tile - 1) / tile, terms), dim3(tile, tile), stream,
           f.channels, static_cast<const A*>(partials), static_cast<int>(shape.grid.x), terms, job.sums);
}

/// Calls body(A{}) with the type of the sums.
template <class Body>
void dispatch_sums(Number number, const Body& body) {
  number == Number::float64 ? body(double{}) : body(float{});
}

dim3 by_channel(std::uint32_t channels) { return dim3((channels + 127) / 128); }

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

void gradient_sums(const Field& f, const GradientSumsJob& job, void* stream) {
  dispatch(f.number, f.vector, [&](auto number, auto count) {
    using T = decltype(number);
    if (job.terms == 0) return run_gradient_sums<T, decltype(count)::value, 0>(f, job, stream);
    if (job.terms == 1) return run_gradient_sums<T, decltype(count)::value, 1>(f, job, stream);
    run_gradient_sums<T, decltype(count)::value, 2>(f, job, stream);
  });
}

void finish_norm_gradient(Number number, const NormGradientJob& job, void* stream) {
  dispatch_sums(number, [&](auto a) {
    launch("finish_norm_gradient", finish_norm_gradient_kernel<decltype(a)>, by_channel(job.channels), dim3(128),
           stream, job);
  });
}

void affine_gradient(const Field& f, const AffineGradientJob& job, void* stream) {
  dispatch(f.number, f.vector, [&](auto number, auto count) {
    using T = decltype(number);
    const Walk walk = walk_of(f, decltype(count)::value);
    const Shape2 shape = shape_of(f.pixels(), walk.groups, map_blocks_each);
    const auto run = [&](auto kernel) {
      launch("affine_gradient", kernel, shape.grid, shape.block, stream, walk, job);
    };
    if (job.mask)
      job.addend.data ? run(affine_gradient_kernel<T, decltype(count)::value, true, true>)
                      : run(affine_gradient_kernel<T, decltype(count)::value, true, false>);
    else
      job.addend.data ? run(affine_gradient_kernel<T, decltype(count)::value, false, true>)
                      : run(affine_gradient_kernel<T, decltype(count)::value, false, false>);
  });
}

}  // namespace tessera::gpu
