// Batch norm, add and ReLU on the GPU, backward: the passes of pointwise.h.
#include "tessera/ops/cuda/gpu_pointwise.cuh"

namespace tessera::gpu {
namespace {

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
    for (int t = 0; t < terms; ++t) read_means<A, count>(job.term[t].coefficients, first, mean[t]);
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

}  // namespace

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
