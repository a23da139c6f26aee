#include "tessera/ops/pointwise_loops.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <limits>

#include "tessera/base/error.h"
#include "tessera/ops/slab.h"
#include "tessera/ops/vectorize.h"

namespace tessera::loops {
namespace {

// Loops run over blocks of a row: `lanes` adjacent numbers, a multiple of the channels, against coefficients that are
// repeated to that length. So the vectoriser sees long loops however few channels there are, and everything of a block
// stays in the first cache.
constexpr std::int64_t preferred_lanes = 1024;
// Sums of a block's lanes are kept in the data's own type for this many blocks, then added up in double.
constexpr std::int64_t blocks_per_flush = 128;

std::int64_t lanes_for(std::int64_t channels, std::int64_t width) {
  return channels * std::clamp<std::int64_t>(preferred_lanes / channels, 1, width);
}

template <class T>
std::vector<T> repeated(const Channels& values, std::int64_t lanes) {
  std::vector<T> out(static_cast<std::size_t>(lanes));
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<T>(values[i % values.size()]);
  return out;
}

// Calls body(block offset in the row, length) for a row of n numbers.
template <class Body>
void each_block(std::int64_t n, std::int64_t lanes, const Body& body) {
  for (std::int64_t at = 0; at < n; at += lanes) body(at, std::min(lanes, n - at));
}

template <class Body>
void parallel_rows(std::int64_t rows, std::int64_t row_elements, const Body& body) {
  at::parallel_for(0, rows, std::max<std::int64_t>(1, 32768 / std::max<std::int64_t>(1, row_elements)), body);
}

// ---- Loops over one block. Each line of arithmetic stands once. ----

template <class T>
TESSERA_VECTORIZE void add_moments(const T* __restrict__ x, const T* __restrict__ pivot, T* __restrict__ s1,
                                   T* __restrict__ s2, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    const T d = x[i] - pivot[i];
    s1[i] += d;
    s2[i] += d * d;
  }
}

// NaN is not negative, so it goes through ReLU and reaches the loss.
template <class T>
TESSERA_VECTORIZE void affine_one(T* __restrict__ y, const T* __restrict__ x, const T* __restrict__ mean,
                                  const T* __restrict__ scale, const T* __restrict__ shift, T floor, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    const T v = (x[i] - mean[i]) * scale[i] + shift[i];
    y[i] = v < floor ? floor : v;
  }
}

template <class T>
TESSERA_VECTORIZE void affine_two(T* __restrict__ y, const T* __restrict__ x0, const T* __restrict__ mean0,
                                  const T* __restrict__ scale0, const T* __restrict__ shift0, const T* __restrict__ x1,
                                  const T* __restrict__ mean1, const T* __restrict__ scale1,
                                  const T* __restrict__ shift1, T floor, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    const T v = ((x0[i] - mean0[i]) * scale0[i] + shift0[i]) + ((x1[i] - mean1[i]) * scale1[i] + shift1[i]);
    y[i] = v < floor ? floor : v;
  }
}

template <class T>
TESSERA_VECTORIZE void add_to(T* __restrict__ sum, const T* __restrict__ a, const T* __restrict__ b, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) sum[i] = a[i] + b[i];
}

template <class T>
TESSERA_VECTORIZE void mask_by_output(T* __restrict__ to, const T* __restrict__ g, const T* __restrict__ z,
                                      std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) to[i] = z[i] <= T(0) ? T(0) : g[i];
}

template <class T>
TESSERA_VECTORIZE void mask_by_input(T* __restrict__ to, const T* __restrict__ g, const T* __restrict__ x,
                                     const T* __restrict__ mean, const T* __restrict__ scale,
                                     const T* __restrict__ shift, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) to[i] = (x[i] - mean[i]) * scale[i] + shift[i] <= T(0) ? T(0) : g[i];
}

template <class T>
TESSERA_VECTORIZE void add_sums(const T* __restrict__ g, const T* __restrict__ x, const T* __restrict__ mean,
                                T* __restrict__ s1, T* __restrict__ s2, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    s1[i] += g[i];
    s2[i] += g[i] * (x[i] - mean[i]);
  }
}

template <class T>
TESSERA_VECTORIZE void input_gradient(T* dx, const T* g, const T* __restrict__ x, const T* __restrict__ mean,
                                      const T* __restrict__ a, const T* __restrict__ b, const T* __restrict__ c,
                                      std::int64_t n) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < n; ++i) dx[i] = a[i] * g[i] + (b[i] * (x[i] - mean[i]) + c[i]);
}

// ---- Sums over a whole slab ----

// Two sums a lane in the data's type, flushed into two sums a channel in double.
template <class T>
struct LaneSums {
  LaneSums(std::int64_t lane_count, std::size_t channels)
      : s1(static_cast<std::size_t>(lane_count)), s2(s1.size()), total1(channels), total2(channels) {}
  void block_done() {
    if (++blocks == blocks_per_flush) flush();
  }
  void flush() {
    const std::size_t channels = total1.size();
    for (std::size_t at = 0; at < s1.size(); at += channels)
      for (std::size_t c = 0; c < channels; ++c) {
        total1[c] += static_cast<double>(s1[at + c]);
        total2[c] += static_cast<double>(s2[at + c]);
      }
    std::fill(s1.begin(), s1.end(), T(0));
    std::fill(s2.begin(), s2.end(), T(0));
    blocks = 0;
  }
  std::vector<T> s1, s2;
  Channels total1, total2;
  std::int64_t blocks = 0;
};

// One LaneSums a thread; added up in the order of the threads, so that a run repeats itself to the bit.
template <class T>
class ThreadSums {
 public:
  ThreadSums(std::int64_t lanes, std::size_t channels)
      : mine_(static_cast<std::size_t>(at::get_num_threads()), LaneSums<T>(lanes, channels)) {}
  LaneSums<T>& here() { return mine_[static_cast<std::size_t>(at::get_thread_num())]; }
  std::pair<Channels, Channels> total() {
    std::pair<Channels, Channels> out{Channels(mine_[0].total1.size()), Channels(mine_[0].total1.size())};
    for (auto& sums : mine_) {
      sums.flush();
      for (std::size_t c = 0; c < out.first.size(); ++c) {
        out.first[c] += sums.total1[c];
        out.second[c] += sums.total2[c];
      }
    }
    return out;
  }

 private:
  std::vector<LaneSums<T>> mine_;
};

// A guess at each channel's mean from a few pixels all over the slab: sums of deviations from it lose no digits.
template <class T>
Channels guess_mean(const Rows<const T>& x) {
  Channels guess(static_cast<std::size_t>(x.channels), 0.0);
  constexpr std::int64_t samples = 16;
  for (std::int64_t s = 0; s < samples; ++s) {
    const T* p = x.row(s * (x.count() - 1) / (samples - 1)) + (s * 7 % x.width) * x.channels;
    for (std::int64_t c = 0; c < x.channels; ++c) guess[static_cast<std::size_t>(c)] += static_cast<double>(p[c]) / samples;
  }
  return guess;
}

template <class T>
struct AffineLanes {
  AffineLanes(const Affine& term, std::int64_t lanes)
      : x(rows_of<const T>(term.x)),
        mean(repeated<T>(term.mean, lanes)),
        scale(repeated<T>(term.scale, lanes)),
        shift(repeated<T>(term.shift, lanes)) {}
  Rows<const T> x;
  std::vector<T> mean, scale, shift;
};

template <class T>
struct MaskLanes {
  MaskLanes(const Mask& mask, std::int64_t lanes) {
    if (mask.output.defined()) output = rows_of<const T>(mask.output);
    if (mask.input) input.emplace_back(*mask.input, lanes);
  }
  /// Writes the masked g to `to` and returns it, or returns g if there is no mask.
  const T* apply(T* to, const T* g, std::int64_t row, std::int64_t at, std::int64_t n) const {
    if (output.data) {
      mask_by_output(to, g, output.row(row) + at, n);
      return to;
    }
    if (input.empty()) return g;
    const auto& term = input[0];
    mask_by_input(to, g, term.x.row(row) + at, term.mean.data(), term.scale.data(), term.shift.data(), n);
    return to;
  }
  Rows<const T> output;
  std::vector<AffineLanes<T>> input;  // none or one
};

}  // namespace

Moments moments(const at::Tensor& tensor) {
  Moments out;
  AT_DISPATCH_FLOATING_TYPES(tensor.scalar_type(), "moments", [&] {
    const auto x = rows_of<const scalar_t>(tensor);
    const std::int64_t lanes = lanes_for(x.channels, x.width);
    const Channels guess = guess_mean(x);
    const auto pivot = repeated<scalar_t>(guess, lanes);
    ThreadSums<scalar_t> sums(lanes, guess.size());
    parallel_rows(x.count(), x.row_elements(), [&](std::int64_t begin, std::int64_t end) {
      auto& mine = sums.here();
      for (std::int64_t r = begin; r < end; ++r)
        each_block(x.row_elements(), lanes, [&](std::int64_t at, std::int64_t n) {
          add_moments(x.row(r) + at, pivot.data(), mine.s1.data(), mine.s2.data(), n);
          mine.block_done();
        });
    });
    auto [s1, s2] = sums.total();
    out.count = x.count() * x.width;
    const auto count = static_cast<double>(out.count);
    for (std::size_t c = 0; c < s1.size(); ++c) {
      s2[c] = std::max(0.0, s2[c] - s1[c] * s1[c] / count);
      s1[c] = static_cast<double>(pivot[c]) + s1[c] / count;
    }
    out.mean = std::move(s1);
    out.m2 = std::move(s2);
  });
  return out;
}

void affine_sum(const std::vector<Affine>& terms, bool relu, const at::Tensor& out) {
  AT_DISPATCH_FLOATING_TYPES(out.scalar_type(), "affine_sum", [&] {
    const auto y = rows_of<scalar_t>(out);
    const std::int64_t lanes = lanes_for(y.channels, y.width);
    const scalar_t floor = relu ? scalar_t(0) : -std::numeric_limits<scalar_t>::infinity();
    std::vector<AffineLanes<scalar_t>> in;
    for (const auto& term : terms) in.emplace_back(term, lanes);
    parallel_rows(y.count(), y.row_elements(), [&](std::int64_t begin, std::int64_t end) {
      const auto &a = in.front(), &b = in.back();
      for (std::int64_t r = begin; r < end; ++r)
        each_block(y.row_elements(), lanes, [&](std::int64_t at, std::int64_t n) {
          if (in.size() == 1)
            affine_one(y.row(r) + at, a.x.row(r) + at, a.mean.data(), a.scale.data(), a.shift.data(), floor, n);
          else
            affine_two(y.row(r) + at, a.x.row(r) + at, a.mean.data(), a.scale.data(), a.shift.data(), b.x.row(r) + at,
                       b.mean.data(), b.scale.data(), b.shift.data(), floor, n);
        });
    });
  });
}

std::vector<GradientSums> gradient_sums(const std::vector<at::Tensor>& gradients, const Mask& mask,
                                        const std::vector<const Affine*>& terms, const at::Tensor& g) {
  std::vector<GradientSums> out;
  AT_DISPATCH_FLOATING_TYPES(gradients[0].scalar_type(), "gradient_sums", [&] {
    std::vector<Rows<const scalar_t>> dy;
    for (const auto& t : gradients) dy.push_back(rows_of<const scalar_t>(t));
    const std::int64_t lanes = lanes_for(dy[0].channels, dy[0].width);
    const MaskLanes<scalar_t> masked(mask, lanes);
    const Rows<scalar_t> written = g.defined() ? rows_of<scalar_t>(g) : Rows<scalar_t>{};
    std::vector<AffineLanes<scalar_t>> in;
    std::vector<ThreadSums<scalar_t>> sums;
    for (const Affine* term : terms) {
      in.emplace_back(*term, lanes);
      sums.emplace_back(lanes, static_cast<std::size_t>(dy[0].channels));
    }
    parallel_rows(dy[0].count(), dy[0].row_elements(), [&](std::int64_t begin, std::int64_t end) {
      std::vector<scalar_t> summed(static_cast<std::size_t>(lanes)), kept(summed.size());
      for (std::int64_t r = begin; r < end; ++r)
        each_block(dy[0].row_elements(), lanes, [&](std::int64_t at, std::int64_t n) {
          const scalar_t* block = dy[0].row(r) + at;
          for (std::size_t i = 1; i < dy.size(); ++i) {
            add_to(i % 2 ? summed.data() : kept.data(), block, dy[i].row(r) + at, n);
            block = i % 2 ? summed.data() : kept.data();
          }
          block = masked.apply(block == kept.data() ? summed.data() : kept.data(), block, r, at, n);
          for (std::size_t t = 0; t < in.size(); ++t) {
            auto& mine = sums[t].here();
            add_sums(block, in[t].x.row(r) + at, in[t].mean.data(), mine.s1.data(), mine.s2.data(), n);
            mine.block_done();
          }
          if (written.data && block != written.row(r) + at) std::copy_n(block, n, written.row(r) + at);
        });
    });
    for (auto& s : sums) {
      auto [s1, s2] = s.total();
      out.push_back({std::move(s1), std::move(s2)});
    }
  });
  return out;
}

void affine_gradient(const at::Tensor& gradient, const Mask& mask, const Affine& term, const GradientCoefficients& k,
                     const at::Tensor& result) {
  AT_DISPATCH_FLOATING_TYPES(gradient.scalar_type(), "affine_gradient", [&] {
    const auto g = rows_of<const scalar_t>(gradient);
    const auto dx = rows_of<scalar_t>(result);
    const std::int64_t lanes = lanes_for(g.channels, g.width);
    const MaskLanes<scalar_t> masked(mask, lanes);
    const AffineLanes<scalar_t> in(term, lanes);
    const auto a = repeated<scalar_t>(k.a, lanes), b = repeated<scalar_t>(k.b, lanes), c = repeated<scalar_t>(k.c, lanes);
    parallel_rows(g.count(), g.row_elements(), [&](std::int64_t begin, std::int64_t end) {
      std::vector<scalar_t> buffer(static_cast<std::size_t>(lanes));
      for (std::int64_t r = begin; r < end; ++r)
        each_block(g.row_elements(), lanes, [&](std::int64_t at, std::int64_t n) {
          const scalar_t* block = masked.apply(buffer.data(), g.row(r) + at, r, at, n);
          input_gradient(dx.row(r) + at, block, in.x.row(r) + at, in.mean.data(), a.data(), b.data(), c.data(), n);
        });
    });
  });
}

}  // namespace tessera::loops
