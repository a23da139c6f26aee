#include "tessera/ops/cpu/winograd.h"

#include <ATen/Parallel.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/ops/cpu/isa/product.h"
#include "tessera/ops/cpu/isa/winograd.h"
#include "tessera/ops/cpu/scratch.h"

namespace tessera {
namespace {

using winograd::points;
using winograd::WeightView;

WeightView view_of(const at::Tensor& w, bool reversed) {
  ensure(w.size(2) == 3 && w.size(3) == 3 && w.stride(2) == 3 * w.stride(3), "weights of sizes ", w.sizes(),
         " and strides ", w.strides(), " are not nine evenly spaced taps");
  const std::int64_t lane = winograd_kernels().lane;
  if (reversed) return {w.size(0), w.size(1), w.stride(0), w.stride(1), w.stride(3), true, lane};
  return {w.size(1), w.size(0), w.stride(1), w.stride(0), w.stride(3), false, lane};
}

// The patches of an output, counted through row by row and sample by sample.
struct Patches {
  static constexpr std::int64_t edge = 4, seen = 6;
  std::int64_t samples, down, across;
  explicit Patches(std::int64_t n, std::int64_t rows, std::int64_t columns)
      : samples(n), down((rows + edge - 1) / edge), across((columns + edge - 1) / edge) {}
  std::int64_t count() const { return samples * down * across; }
  struct Place {
    std::int64_t sample, row, column;
  };
  Place at(std::int64_t i) const { return {i / (down * across), i / across % down * edge, i % across * edge}; }
};

// Where the n×n pixels from (row, column) on lie. Pixels outside of the memory are `outside`.
template <std::int64_t n, class T>
TESSERA_INLINE void pixels_of(const Rows<T>& memory, std::int64_t sample, std::int64_t row, std::int64_t column,
                              T* outside, T** to) {
  for (std::int64_t i = 0; i < n; ++i) {
    const bool row_inside = row + i >= 0 && row + i < memory.rows;
    T* const first = row_inside ? memory.row(sample, row + i) : nullptr;
    for (std::int64_t j = 0; j < n; ++j) {
      const std::int64_t x = column + j;
      to[i * n + j] = row_inside && x >= 0 && x < memory.width ? first + x * memory.channels : outside;
    }
  }
}

// How a pass goes through the patches: some at a time, so that their values stay in a core's second cache.
struct Groups {
  Patches patches;
  std::int64_t in_whole, out_whole;
  std::int64_t together, count;

  Groups(std::int64_t in_channels, std::int64_t samples, std::int64_t rows, std::int64_t columns,
         std::int64_t out_channels)
      : patches(samples, rows, columns), in_whole(whole_vectors(in_channels)), out_whole(whole_vectors(out_channels)) {
    // Few patches stay in a core's second cache; but where the weights do not, each fetch of them should serve more.
    together = few() ? patches.count() : in_whole * out_whole < 128 * 256 ? 24 : 48;
    count = (patches.count() + together - 1) / together;
  }

  /// So few patches that they are all taken at once, with some columns of the weights at a time: the weights are then
  /// what must not leave the cache.
  bool few() const { return patches.count() <= in_whole * out_whole / 1024; }

  std::int64_t begin(std::int64_t group) const { return group * together; }
  std::int64_t size(std::int64_t group) const { return std::min(together, patches.count() - begin(group)); }
  /// A gap between the 36 matrices, as WeightView::step() has it.
  std::int64_t in_step() const { return together * in_whole + winograd_kernels().lane; }
  std::int64_t out_step() const { return together * out_whole + winograd_kernels().lane; }
  /// What a thread needs for one group.
  std::int64_t scratch() const { return points * (in_step() + out_step()) + 2 * std::max(in_whole, out_whole); }
};

// The parts of a thread's scratch memory.
struct Scratch {
  float *in, *out;  // 36 matrices each, one row a patch
  float* zeros;     // a pixel
  float* sink;      // a pixel that nobody reads
  Scratch(float* memory, const Groups& g)
      : in(memory),
        out(in + points * g.in_step()),
        zeros(out + points * g.out_step()),
        sink(zeros + std::max(g.in_whole, g.out_whole)) {
    std::fill(zeros, sink, 0.0F);
  }
};

void input_of_patch(const Rows<const float>& in, Origin origin, const Groups& g, std::int64_t group, std::int64_t i,
                    const Scratch& s) {
  const auto at = g.patches.at(g.begin(group) + i);
  const float* pixels[36];
  pixels_of<6, const float>(in, at.sample, origin.row + at.row, origin.column + at.column, s.zeros, pixels);
  winograd_kernels().inputs_to_points(pixels, in.channels, s.in + i * g.in_whole, g.in_step());
}

void gradient_of_patch(const Rows<const float>& gradient, const Groups& g, std::int64_t group, std::int64_t i,
                       const Scratch& s) {
  const auto at = g.patches.at(g.begin(group) + i);
  const float* pixels[16];
  pixels_of<4, const float>(gradient, at.sample, at.row, at.column, s.zeros, pixels);
  winograd_kernels().gradients_to_points(pixels, gradient.channels, s.out + i * g.out_whole, g.out_step());
}

// Channels [first, first + channels).
void output_of_patch(const Rows<float>& out, const Groups& g, std::int64_t group, std::int64_t i, const Scratch& s,
                     const float* bias, std::int64_t first, std::int64_t channels) {
  const auto at = g.patches.at(g.begin(group) + i);
  float* pixels[16];
  pixels_of<4, float>(out, at.sample, at.row, at.column, s.sink, pixels);
  for (auto& pixel : pixels) pixel += first;
  winograd_kernels().points_to_outputs(s.out + i * g.out_whole + first, g.out_step(), bias ? bias + first : nullptr,
                                       channels, pixels);
}

// How much of the weights is taken at a time where patches are few: half a megabyte of 36 matrices.
constexpr std::int64_t rows_at_a_time = 128, columns_at_a_time = 32;

// Calls f(first column, memory for the 36 matrices of a part of the weights) for all columns, in parallel.
template <class Call>
void for_columns(const WeightView& view, const Call& f) {
  const std::int64_t size = points * view.part(0, rows_at_a_time, 0, columns_at_a_time).step();
  const at::Tensor memory = floats(at::get_num_threads() * size);
  at::parallel_for(0, (view.to + columns_at_a_time - 1) / columns_at_a_time, 1,
                   [&](std::int64_t first, std::int64_t last) {
                     for (std::int64_t i = first; i < last; ++i)
                       f(i * columns_at_a_time, memory.data_ptr<float>() + at::get_thread_num() * size);
                   });
}

void convolve_few(const Rows<const float>& in, Origin origin, const float* weights, const WeightView& view,
                  const float* bias, const Rows<float>& out, const Groups& g) {
  const WinogradKernels& kernels = winograd_kernels();
  const at::Tensor memory = floats(g.scratch());
  const Scratch s(memory.data_ptr<float>(), g);
  const std::int64_t patches = g.patches.count();
  at::parallel_for(0, patches, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) input_of_patch(in, origin, g, 0, i, s);
  });
  for_columns(view, [&](std::int64_t column, float* u) {
    for (std::int64_t row = 0; row < view.from; row += rows_at_a_time) {
      const WeightView part = view.part(row, rows_at_a_time, column, columns_at_a_time);
      kernels.weights_to_matrices(weights + view.offset(row, column), part, 0, part.from, u);
      const auto multiply = row == 0 ? product_kernels().multiply_panels : product_kernels().add_panels;
      for (std::int64_t k = 0; k < points; ++k)
        multiply(s.in + k * g.in_step() + row, u + k * part.step(), s.out + k * g.out_step() + column,
                 {patches, part.to_whole(), part.from}, {g.in_whole, 1, 0, g.out_whole});
    }
    const std::int64_t channels = std::min(columns_at_a_time, view.to - column);
    for (std::int64_t i = 0; i < patches; ++i) output_of_patch(out, g, 0, i, s, bias, column, channels);
  });
}

void convolve(const Rows<const float>& in, Origin origin, const at::Tensor& weights, const WeightView& view,
              const float* bias, const Rows<float>& out) {
  const Groups g(in.channels, out.samples, out.rows, out.width, out.channels);
  if (g.few()) return convolve_few(in, origin, weights.data_ptr<float>(), view, bias, out, g);
  const WinogradKernels& kernels = winograd_kernels();
  const at::Tensor matrices = floats(points * view.step());
  float* const u = matrices.data_ptr<float>();
  const std::int64_t lane = kernels.lane, blocks = whole_vectors(view.from) / lane;
  at::parallel_for(0, blocks, 1, [&](std::int64_t first, std::int64_t last) {
    kernels.weights_to_matrices(weights.data_ptr<float>(), view, first * lane, std::min(last * lane, view.from), u);
  });

  const at::Tensor memory = floats(at::get_num_threads() * g.scratch());
  at::parallel_for(0, g.count, 1, [&](std::int64_t first, std::int64_t last) {
    const Scratch s(memory.data_ptr<float>() + at::get_thread_num() * g.scratch(), g);
    for (std::int64_t group = first; group < last; ++group) {
      for (std::int64_t i = 0; i < g.size(group); ++i) input_of_patch(in, origin, g, group, i, s);
      for (std::int64_t k = 0; k < points; ++k)
        product_kernels().multiply_panels(s.in + k * g.in_step(), u + k * view.step(), s.out + k * g.out_step(),
                                          {g.size(group), g.out_whole, view.from}, {g.in_whole, 1, 0, g.out_whole});
      for (std::int64_t i = 0; i < g.size(group); ++i) output_of_patch(out, g, group, i, s, bias, 0, out.channels);
    }
  });
}

// The weights' gradient from groups [first, last), added to `sum`. Sums of more patches than this would lose digits.
constexpr std::int64_t patches_a_sum = 1024;

void add_weight_gradient(const Rows<const float>& in, Origin origin, const Rows<const float>& gradient, const Groups& g,
                         std::int64_t first, std::int64_t last, const Scratch& s, float* matrices,
                         const WeightView& view, float* sum) {
  const WinogradKernels& kernels = winograd_kernels();
  const std::int64_t groups_a_sum = std::max<std::int64_t>(1, patches_a_sum / g.together);
  for (std::int64_t group = first; group < last; ++group) {
    for (std::int64_t i = 0; i < g.size(group); ++i) {
      input_of_patch(in, origin, g, group, i, s);
      gradient_of_patch(gradient, g, group, i, s);
    }
    const std::int64_t in_sum = (group - first) % groups_a_sum;
    const auto multiply = in_sum == 0 ? product_kernels().multiply : product_kernels().add;
    for (std::int64_t k = 0; k < points; ++k)
      multiply(s.in + k * g.in_step(), s.out + k * g.out_step(), matrices + k * view.step(),
               {view.from, g.out_whole, g.size(group)}, {1, g.in_whole, g.out_whole, g.out_whole});
    if (in_sum + 1 == groups_a_sum || group + 1 == last) kernels.matrices_to_weights(matrices, view, sum);
  }
}

void add_weight_gradient_of_few(const Rows<const float>& in, Origin origin, const Rows<const float>& gradient,
                                const Groups& g, const WeightView& view, float* sum) {
  const WinogradKernels& kernels = winograd_kernels();
  const at::Tensor memory = floats(g.scratch());
  const Scratch s(memory.data_ptr<float>(), g);
  const std::int64_t patches = g.patches.count();
  at::parallel_for(0, patches, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) {
      input_of_patch(in, origin, g, 0, i, s);
      gradient_of_patch(gradient, g, 0, i, s);
    }
  });
  for_columns(view, [&](std::int64_t column, float* matrices) {
    for (std::int64_t row = 0; row < view.from; row += rows_at_a_time) {
      const WeightView part = view.part(row, rows_at_a_time, column, columns_at_a_time);
      for (std::int64_t k = 0; k < points; ++k)
        product_kernels().multiply(s.in + k * g.in_step() + row, s.out + k * g.out_step() + column,
                                   matrices + k * part.step(), {part.from, part.to_whole(), patches},
                                   {1, g.in_whole, g.out_whole, part.to_whole()});
      kernels.matrices_to_weights(matrices, part, sum + view.offset(row, column));
    }
  });
}

}  // namespace

bool winograd_pays(std::int64_t in_channels, std::int64_t out_channels, std::int64_t samples, std::int64_t rows,
                   std::int64_t columns) {
  const std::int64_t patches = Patches(samples, rows, columns).count();
  constexpr std::int64_t least = 16;
  // Few patches do not pay for the transform of the weights; patches that reach far over the edge waste their pixels.
  return in_channels >= least && out_channels >= least && patches >= 8 && samples * rows * columns >= 10 * patches;
}

std::int64_t winograd_scratch(std::int64_t in_channels, std::int64_t out_channels, std::int64_t samples,
                              std::int64_t rows, std::int64_t columns, bool of_weights) {
  const Groups g(in_channels, samples, rows, columns, out_channels);
  const WeightView view{in_channels, out_channels, 0, 0, 0, false, winograd_kernels().lane};
  const std::int64_t threads = at::get_num_threads();
  if (g.few()) return g.scratch() + threads * points * view.part(0, rows_at_a_time, 0, columns_at_a_time).step();
  if (!of_weights) return points * view.step() + threads * g.scratch();
  const std::int64_t at_work = std::min(threads, g.count);
  return at_work * (g.scratch() + points * view.step()) + (at_work - 1) * 9 * in_channels * out_channels;
}

void winograd_forward(const Rows<const float>& in, Origin origin, const at::Tensor& weights, const float* bias,
                      const Rows<float>& out) {
  convolve(in, origin, weights, view_of(weights, false), bias, out);
}

void winograd_input_gradient(const Rows<const float>& gradient, Origin origin, const at::Tensor& weights,
                             const Rows<float>& out) {
  // Input i meets tap k at output i - origin - k.
  convolve(gradient, {-origin.row - 2, -origin.column - 2}, weights, view_of(weights, true), nullptr, out);
}

void winograd_weight_gradient(const Rows<const float>& in, Origin origin, const Rows<const float>& gradient,
                              const at::Tensor& sum) {
  const WeightView view = view_of(sum, false);
  const Groups g(in.channels, gradient.samples, gradient.rows, gradient.width, gradient.channels);
  if (g.few()) return add_weight_gradient_of_few(in, origin, gradient, g, view, sum.data_ptr<float>());
  const std::int64_t threads = std::min<std::int64_t>(at::get_num_threads(), g.count);
  const at::Tensor memory = floats(threads * g.scratch()), matrices = floats(threads * points * view.step());
  // A thread alone adds to the sum; more of them have sums of their own, which are added in the order of the threads.
  std::vector<at::Tensor> sums{sum};
  for (std::int64_t thread = 1; thread < threads; ++thread) sums.push_back(at::zeros_like(sum));
  at::parallel_for(0, threads, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t thread = begin; thread < end; ++thread)
      add_weight_gradient(in, origin, gradient, g, g.count * thread / threads, g.count * (thread + 1) / threads,
                          Scratch(memory.data_ptr<float>() + thread * g.scratch(), g),
                          matrices.data_ptr<float>() + thread * points * view.step(), view,
                          sums[static_cast<std::size_t>(thread)].data_ptr<float>());
  });
  for (std::size_t thread = 1; thread < sums.size(); ++thread) sum.add_(sums[thread]);
}

}  // namespace tessera
