// Point-wise steps of any formula on the GPU: act(a ∘ b) and its gradient, each in one pass. Sums of terms that are left
// as they are, or cut off below zero, have passes of their own, with fewer registers: gpu_pointwise.cu.
#include "tessera/graph/activations.h"
#include "tessera/ops/cuda/gpu_pointwise.cuh"

namespace tessera::gpu {
namespace {

// All threads take the same way through the switch.
template <class A>
__device__ inline A value_of(const FormulaView& f, A x) {
  if (f.activation < 0) return x;
  A y = x;
  switch (static_cast<ActivationKind>(f.activation)) {
#define TESSERA_CASE(name, at_x, slope, slope_by_value)                    \
  case ActivationKind::name:                                                 \
    y = activation::name##_formula::value<A>(x, static_cast<A>(f.parameter)); \
    break;
    TESSERA_ACTIVATIONS(TESSERA_CASE)
#undef TESSERA_CASE
  }
  return y;
}
template <class A>
__device__ inline A slope_of(const FormulaView& f, A x, bool by_value) {
  if (f.activation < 0) return A(1);
  A y = x;
  switch (static_cast<ActivationKind>(f.activation)) {
#define TESSERA_CASE(name, at_x, slope, slope_by_value)                                            \
  case ActivationKind::name:                                                                         \
    y = by_value ? activation::name##_formula::by_value<A>(x, static_cast<A>(f.parameter))           \
                 : activation::name##_formula::derivative<A>(x, static_cast<A>(f.parameter));        \
    break;
    TESSERA_ACTIVATIONS(TESSERA_CASE)
#undef TESSERA_CASE
  }
  return y;
}

template <class T, int count, int terms>
__global__ void __launch_bounds__(block_threads, 2) evaluate_kernel(Walk walk, EvaluateJob job) {
  using A = Accumulator<T>;
  const std::uint32_t group = blockIdx.y * blockDim.x + threadIdx.x, first = group * count;
  if (group >= walk.groups) return;
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
  const auto put = [&](const Read& r, std::uint32_t pixel) {
    Pack<T, count> out;
#pragma unroll
    for (int i = 0; i < count; ++i) {
      A v = k[0].apply(wide<T>(r.x[0].values[i]), i);
      if constexpr (terms == 2) {
        const A w = k[1].apply(wide<T>(r.x[1].values[i]), i);
        v = job.formula.product ? v * w : v + w;
      }
      out.values[i] = narrow<T>(value_of<A>(job.formula, v));
    }
    store<T, count>(data_of<T>(job.out) + first + walk.offset(job.out, pixel), out);
  };
  down_the_pixels<2>(walk, read, put);
}

template <class T, int count, int terms>
__global__ void __launch_bounds__(block_threads, 1)
    gradient_kernel(Walk walk, GradientJob job, Accumulator<T>* partials) {
  using A = Accumulator<T>;
  const std::uint32_t group = blockIdx.y * blockDim.x + threadIdx.x, first = group * count;
  A sums[2 * terms][count] = {};
  if (group < walk.groups) {
    Coefficients<A, count> k[terms];
#pragma unroll
    for (int t = 0; t < terms; ++t) k[t].read(job.term[t].coefficients, walk.channels, first);
    struct Read {
      Pack<T, count> dy0, dy1, output, x[terms];
    };
    const auto read = [&](std::uint32_t pixel) {
      Read r;
      r.dy0 = load<T, count>(data_of<const T>(job.gradients[0]) + first + walk.offset(job.gradients[0], pixel));
      if (job.gradients[1].data)
        r.dy1 = load<T, count>(data_of<const T>(job.gradients[1]) + first + walk.offset(job.gradients[1], pixel));
      if (job.output.data)
        r.output = load<T, count>(data_of<const T>(job.output) + first + walk.offset(job.output, pixel));
#pragma unroll
      for (int t = 0; t < terms; ++t)
        r.x[t] = load<T, count>(data_of<const T>(job.term[t].x) + first + walk.offset(job.term[t].x, pixel));
      return r;
    };
    const auto take = [&](const Read& r, std::uint32_t pixel) {
      Pack<T, count> out[terms];
#pragma unroll
      for (int i = 0; i < count; ++i) {
        A g = wide<T>(r.dy0.values[i]);
        if (job.gradients[1].data) g += wide<T>(r.dy1.values[i]);
        A v[terms], u = 0;
#pragma unroll
        for (int t = 0; t < terms; ++t) v[t] = k[t].apply(wide<T>(r.x[t].values[i]), i);
        u = v[0];
        if constexpr (terms == 2) u = job.formula.product ? v[0] * v[1] : v[0] + v[1];
        g *= slope_of<A>(job.formula, job.output.data ? wide<T>(r.output.values[i]) : u, job.output.data != nullptr);
#pragma unroll
        for (int t = 0; t < terms; ++t) {
          A mine = g;
          if constexpr (terms == 2) mine = job.formula.product ? g * v[1 - t] : g;
          out[t].values[i] = narrow<T>(mine);
          sums[2 * t][i] += mine;
          sums[2 * t + 1][i] += mine * (wide<T>(r.x[t].values[i]) - k[t].mean[i]);
        }
      }
#pragma unroll
      for (int t = 0; t < terms; ++t)
        if (job.g[t].data) store<T, count>(data_of<T>(job.g[t]) + first + walk.offset(job.g[t], pixel), out[t]);
    };
    down_the_pixels<1>(walk, read, take);
  }
  add_up<A, 2 * terms, count>(sums, walk, partials);
}

template <class T, int count, int terms>
void run_gradient(const Field& f, const GradientJob& job, void* stream) {
  using A = Accumulator<T>;
  const Shape2 shape = sum_shape(f);
  A* const partials = static_cast<A*>(job.partials);
  launch("pointwise_gradient", gradient_kernel<T, count, terms>, shape.grid, shape.block, stream, walk_of(f, count),
         job, partials);
  launch("finish_sums", finish_sums_kernel<A>, dim3((f.channels + tile - 1) / tile, terms), dim3(tile, tile), stream,
         f.channels, static_cast<const A*>(partials), static_cast<int>(shape.grid.x), terms, job.sums);
}

}  // namespace

void evaluate(const Field& f, const EvaluateJob& job, void* stream) {
  dispatch(f.number, f.vector, [&](auto number, auto count) {
    using T = decltype(number);
    constexpr int each = decltype(count)::value;
    const Walk walk = walk_of(f, each);
    const Shape2 shape = shape_of(f.pixels(), walk.groups, map_blocks_each);
    const auto run = [&](auto kernel) { launch("evaluate", kernel, shape.grid, shape.block, stream, walk, job); };
    job.terms == 2 ? run(evaluate_kernel<T, each, 2>) : run(evaluate_kernel<T, each, 1>);
  });
}

void gradient(const Field& f, const GradientJob& job, void* stream) {
  dispatch(f.number, f.vector, [&](auto number, auto count) {
    using T = decltype(number);
    constexpr int each = decltype(count)::value;
    job.terms == 2 ? run_gradient<T, each, 2>(f, job, stream) : run_gradient<T, each, 1>(f, job, stream);
  });
}

}  // namespace tessera::gpu
