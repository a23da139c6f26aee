#include "tessera/ops/cpu/direct.h"

#include <ATen/Parallel.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <vector>

#include "tessera/ops/cpu/isa/product.h"
#include "tessera/ops/cpu/scratch.h"

namespace tessera {
namespace {

// Pixels of a row that are taken at once: enough to fetch the weights seldom, few enough for a core's second cache.
constexpr std::int64_t pixels_together = 96;

// A convolution of single pixels is the same for any width: all rows without gaps between them are one.
template <class A, class B>
void flatten(Rows<A>& a, Rows<B>& b) {
  const auto closed = [](const auto& m) {
    return m.row_stride == m.row_elements() && (m.samples == 1 || m.sample_stride == m.rows * m.row_elements());
  };
  if (!closed(a) || !closed(b)) return;
  const auto flat = [](auto& m) {
    m.width *= m.samples * m.rows;
    m.samples = m.rows = 1;
    m.row_stride = m.sample_stride = m.row_elements();
  };
  flat(a);
  flat(b);
}
bool of_single_pixels(std::int64_t side, std::int64_t stride, Origin origin) {
  return side == 1 && stride == 1 && origin.row == 0 && origin.column == 0;
}

// `count` pixels of a row from column `first` on. Where some are outside of the memory, a copy with zeros for them.
const float* pixels_from(const Rows<const float>& m, std::int64_t sample, std::int64_t row, std::int64_t first,
                         std::int64_t count, float* copy) {
  const float* const begin = m.row(sample, row);
  if (first >= 0 && first + count <= m.width) return begin + first * m.channels;
  const std::int64_t low = std::clamp<std::int64_t>(-first, 0, count);
  const std::int64_t high = std::clamp<std::int64_t>(m.width - first, low, count);
  std::fill(copy, copy + low * m.channels, 0.0F);
  std::copy(begin + (first + low) * m.channels, begin + (first + high) * m.channels, copy + low * m.channels);
  std::fill(copy + high * m.channels, copy + count * m.channels, 0.0F);
  return copy;
}

// Pieces of rows, counted through.
struct Pieces {
  std::int64_t samples, rows, width, across;
  Pieces(std::int64_t n, std::int64_t r, std::int64_t w)
      : samples(n), rows(r), width(w), across((w + pixels_together - 1) / pixels_together) {}
  std::int64_t count() const { return samples * rows * across; }
  struct Place {
    std::int64_t sample, row, column, pixels;
  };
  Place at(std::int64_t i) const {
    // Pieces of a row are alike, so that none is too short to be worth its weights.
    const std::int64_t piece = i % across, begin = width * piece / across, end = width * (piece + 1) / across;
    return {i / across / rows, i / across % rows, begin, end - begin};
  }
};

// What a piece's products are written to: the place itself, or, where its pixels are no whole vectors, a copy that
// finish() moves there.
class Target {
 public:
  Target(float* place, std::int64_t pixel_stride, std::int64_t channels, std::int64_t pixels, float* copy)
      : place_(place),
        copy_(channels % product_kernels().lane == 0 ? nullptr : copy),
        stride_(pixel_stride),
        whole_(whole_vectors(channels)),
        channels_(channels),
        pixels_(pixels) {}
  void add(const float* a, std::int64_t a_row, const float* panels, std::int64_t depth) {
    const auto multiply = empty_ ? product_kernels().multiply_panels : product_kernels().add_panels;
    multiply(a, panels, to(), {pixels_, whole_, depth}, {a_row, 1, 0, step()});
    empty_ = false;
  }
  void finish(const float* bias) {
    for (std::int64_t i = 0; i < pixels_ && (empty_ || bias || copy_); ++i) {
      const float* const from = to() + i * step();
      float* const pixel = place_ + i * stride_;
      for (std::int64_t c = 0; c < channels_; ++c) pixel[c] = (empty_ ? 0.0F : from[c]) + (bias ? bias[c] : 0.0F);
    }
  }

 private:
  float* to() const { return copy_ ? copy_ : place_; }
  std::int64_t step() const { return copy_ ? whole_ : stride_; }
  float *place_, *copy_;
  std::int64_t stride_, whole_, channels_, pixels_;
  bool empty_ = true;
};

// The matrix of one tap, rows [row, row + rows) of a right factor of `depth` rows that starts at `panels`.
struct TapMatrix {
  std::int64_t tap_row, tap_column;
  float* panels;
  std::int64_t depth, first;
};

// From input to output channels, or the other way.
void pack(const at::Tensor& w, bool forward, const std::vector<TapMatrix>& taps) {
  const WeightMatrix all = forward ? WeightMatrix{w.size(1), w.size(0), w.stride(1), w.stride(0)}
                                   : WeightMatrix{w.size(0), w.size(1), w.stride(0), w.stride(1)};
  constexpr std::int64_t rows_at_a_time = 64;
  const std::int64_t parts = (all.rows + rows_at_a_time - 1) / rows_at_a_time;
  const float* const data = w.data_ptr<float>();
  at::parallel_for(0, static_cast<std::int64_t>(taps.size()) * parts, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const TapMatrix& tap = taps[static_cast<std::size_t>(i / parts)];
      const std::int64_t row = i % parts * rows_at_a_time;
      WeightMatrix part = all;
      part.rows = std::min(rows_at_a_time, all.rows - row);
      product_kernels().to_panels(
          data + tap.tap_row * w.stride(2) + tap.tap_column * w.stride(3) + row * all.row_stride, part, tap.panels,
          tap.depth, tap.first + row);
    }
  });
}

}  // namespace

std::int64_t direct_scratch(std::int64_t in_channels, std::int64_t out_channels, std::int64_t side, std::int64_t stride,
                            bool of_weights) {
  const std::int64_t whole = whole_vectors(out_channels), threads = at::get_num_threads();
  const std::int64_t matrix = side * side * in_channels * whole;
  const std::int64_t piece = ((pixels_together - 1) * stride + side) * in_channels + pixels_together * whole;
  if (!of_weights) return matrix + threads * piece;
  return threads * (matrix + piece) + (threads - 1) * side * side * in_channels * out_channels;
}

void direct_forward(const Rows<const float>& input, Origin origin, std::int64_t stride, const at::Tensor& weights,
                    const float* bias, const Rows<float>& output) {
  Rows<const float> in = input;
  Rows<float> out = output;
  const std::int64_t side = weights.size(2), whole = whole_vectors(out.channels);
  if (of_single_pixels(side, stride, origin)) flatten(in, out);
  const std::int64_t depth = side * in.channels;
  const at::Tensor factors = floats(side * depth * whole);
  std::vector<TapMatrix> taps;
  for (std::int64_t i = 0; i < side; ++i)
    for (std::int64_t j = 0; j < side; ++j)
      taps.push_back({i, j, factors.data_ptr<float>() + i * depth * whole, depth, j * in.channels});
  pack(weights, true, taps);

  const Pieces pieces(out.samples, out.rows, out.width);
  const std::int64_t seen = (pixels_together - 1) * stride + side;
  const std::int64_t scratch = seen * in.channels + pixels_together * whole;
  const at::Tensor memory = floats(at::get_num_threads() * scratch);
  at::parallel_for(0, pieces.count(), 1, [&](std::int64_t begin, std::int64_t end) {
    float* const copy = memory.data_ptr<float>() + at::get_thread_num() * scratch;
    const float* const right = factors.data_ptr<float>();
    for (std::int64_t i = begin; i < end; ++i) {
      const auto at = pieces.at(i);
      Target target(out.row(at.sample, at.row) + at.column * out.channels, out.channels, out.channels, at.pixels,
                    copy + seen * in.channels);
      for (std::int64_t k = 0; k < side; ++k) {
        const std::int64_t row = at.row * stride + origin.row + k;
        if (row < 0 || row >= in.rows) continue;
        target.add(
            pixels_from(in, at.sample, row, at.column * stride + origin.column, (at.pixels - 1) * stride + side, copy),
            stride * in.channels, right + k * depth * whole, depth);
      }
      target.finish(bias);
    }
  });
}

void direct_input_gradient(const Rows<const float>& gradient, Origin origin, std::int64_t stride,
                           const at::Tensor& weights, const Rows<float>& output) {
  Rows<const float> dy = gradient;
  Rows<float> dx = output;
  const std::int64_t side = weights.size(2), whole = whole_vectors(dx.channels);
  if (of_single_pixels(side, stride, origin)) flatten(dy, dx);

  // Input column x meets tap j at output column (x - origin - j) / stride. So columns of the same phase,
  // (x - origin) mod stride, see the taps phase, phase + stride, ..., of outputs that lie side by side:
  //
  //     column  origin + phase + q·stride   sees outputs   q - taps + 1 .. q   by taps   phase + (taps - 1)·stride ..
  //     phase
  const auto taps_of = [&](std::int64_t phase) { return phase < side ? (side - phase + stride - 1) / stride : 0; };
  const std::int64_t row_size = side * dy.channels * whole;  // of all phases for one row of the window
  const at::Tensor factors = floats(side * row_size);
  std::vector<float*> of_phase;
  std::vector<TapMatrix> taps;
  float* next = factors.data_ptr<float>();
  for (std::int64_t phase = 0; phase < stride; ++phase) {
    of_phase.push_back(next);
    const std::int64_t count = taps_of(phase), depth = count * dy.channels;
    for (std::int64_t i = 0; i < side; ++i)
      for (std::int64_t t = 0; t < count; ++t)
        taps.push_back({i, phase + t * stride, next + i * row_size, depth, (count - 1 - t) * dy.channels});
    next += depth * whole;
  }
  pack(weights, false, taps);

  const std::int64_t seen = pixels_together + taps_of(0) - 1;
  const std::int64_t scratch = seen * dy.channels + pixels_together * whole;
  const at::Tensor memory = floats(at::get_num_threads() * scratch);
  // A piece is of pixels of one phase, or fewer.
  const Pieces pieces(dx.samples, dx.rows, (dx.width + stride - 1) / stride);
  at::parallel_for(0, pieces.count(), 1, [&](std::int64_t begin, std::int64_t end) {
    float* const copy = memory.data_ptr<float>() + at::get_thread_num() * scratch;
    for (std::int64_t i = begin; i < end; ++i) {
      const auto at = pieces.at(i);
      for (std::int64_t offset = 0; offset < stride; ++offset) {
        const std::int64_t column = at.column * stride + offset;
        const std::int64_t pixels = std::min(at.pixels, (dx.width - column + stride - 1) / stride);
        if (column >= dx.width) break;
        const std::int64_t from_origin = column - origin.column;
        const std::int64_t phase = (from_origin % stride + stride) % stride, q = (from_origin - phase) / stride;
        const std::int64_t count = taps_of(phase);
        Target target(dx.row(at.sample, at.row) + column * dx.channels, stride * dx.channels, dx.channels, pixels,
                      copy + seen * dy.channels);
        for (std::int64_t k = 0; k < side && count > 0; ++k) {
          const std::int64_t row = at.row - origin.row - k;
          if (row < 0 || row % stride != 0 || row / stride >= dy.rows) continue;
          target.add(pixels_from(dy, at.sample, row / stride, q - count + 1, pixels + count - 1, copy), dy.channels,
                     of_phase[static_cast<std::size_t>(phase)] + k * row_size, count * dy.channels);
        }
        target.finish(nullptr);
      }
    }
  });
}

namespace {

// Sums of more pixels than this in one float would lose digits.
constexpr std::int64_t pixels_a_sum = 4096;

struct WeightSums {
  const Rows<const float>&in, &dy;
  Origin origin;
  std::int64_t stride, side, whole;
  std::int64_t depth() const { return side * in.channels; }
  std::int64_t seen() const { return (pixels_together - 1) * stride + side; }
  std::int64_t matrix() const { return side * depth() * whole; }
  std::int64_t scratch() const { return matrix() + seen() * in.channels + pixels_together * whole; }

  // The share of pieces [begin, end), added to `sum`.
  void add(const Pieces& pieces, std::int64_t begin, std::int64_t end, float* memory, const at::Tensor& sum) const {
    float *const copy = memory + matrix(), *const panels = copy + seen() * in.channels;
    std::fill(memory, copy, 0.0F);
    std::int64_t summed = 0;
    for (std::int64_t i = begin; i < end; ++i) {
      const auto at = pieces.at(i);
      product_kernels().to_panels(dy.row(at.sample, at.row) + at.column * dy.channels,
                                  {at.pixels, dy.channels, dy.channels, 1}, panels, at.pixels, 0);
      for (std::int64_t k = 0; k < side; ++k) {
        const std::int64_t row = at.row * stride + origin.row + k;
        if (row < 0 || row >= in.rows) continue;
        const float* const a =
            pixels_from(in, at.sample, row, at.column * stride + origin.column, (at.pixels - 1) * stride + side, copy);
        product_kernels().add_panels(a, panels, memory + k * depth() * whole, {depth(), whole, at.pixels},
                                     {1, stride * in.channels, 0, whole});
      }
      summed += at.pixels;
      if (summed < pixels_a_sum && i + 1 < end) continue;
      for (std::int64_t tap = 0; tap < side * side; ++tap)
        product_kernels().add_to_weights(
            memory + tap * in.channels * whole, whole, {in.channels, dy.channels, sum.stride(1), sum.stride(0)},
            sum.data_ptr<float>() + tap / side * sum.stride(2) + tap % side * sum.stride(3));
      std::fill(memory, copy, 0.0F);
      summed = 0;
    }
  }
};

}  // namespace

void direct_weight_gradient(const Rows<const float>& input, Origin origin, std::int64_t stride,
                            const Rows<const float>& gradient, const at::Tensor& sum) {
  Rows<const float> in = input, dy = gradient;
  const std::int64_t side = sum.size(2);
  if (of_single_pixels(side, stride, origin)) flatten(in, dy);
  const WeightSums sums{in, dy, origin, stride, side, whole_vectors(dy.channels)};
  const Pieces pieces(dy.samples, dy.rows, dy.width);
  const std::int64_t threads = std::min<std::int64_t>(at::get_num_threads(), pieces.count());
  const at::Tensor memory = floats(threads * sums.scratch());
  // A thread alone adds to the sum; more of them have sums of their own, which are added in the order of the threads.
  std::vector<at::Tensor> of_threads{sum};
  for (std::int64_t thread = 1; thread < threads; ++thread) of_threads.push_back(at::zeros_like(sum));
  at::parallel_for(0, threads, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t thread = begin; thread < end; ++thread)
      sums.add(pieces, pieces.count() * thread / threads, pieces.count() * (thread + 1) / threads,
               memory.data_ptr<float>() + thread * sums.scratch(), of_threads[static_cast<std::size_t>(thread)]);
  });
  for (std::size_t thread = 1; thread < of_threads.size(); ++thread) sum.add_(of_threads[thread]);
}

}  // namespace tessera
