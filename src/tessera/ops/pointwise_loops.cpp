#include "tessera/ops/pointwise_loops.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include <limits>

#include "tessera/base/error.h"
#include "tessera/ops/pointwise_arithmetic.h"
#include "tessera/ops/slab.h"

namespace tessera::loops {
namespace {

using lanes::repeated;

// ---- Which memory, in which order ----

// Tensors of one size, as runs of adjacent numbers that begin with channel 0: rows, or, where no tensor has gaps,
// everything in one run.
struct Layout {
  std::int64_t runs = 1, run = 0, channels = 0;
};

template <class T>
struct Stream {
  Rows<T> rows;
  bool dense = false;
  T* at(const Layout& layout, std::int64_t run) const { return layout.runs == 1 ? rows.data : rows.row(run); }
};

template <class T>
Stream<T> stream_of(const at::Tensor& t) {
  if (!t.defined()) return {{}, true};
  const auto rows = rows_of<T>(t);
  const bool dense = (rows.rows == 1 || rows.row_stride == rows.row_elements()) &&
                     (rows.samples == 1 || rows.sample_stride == rows.rows * rows.row_elements());
  return {rows, dense};
}

template <class T, class... Streams>
Layout layout_of(const Stream<T>& first, const Streams&... others) {
  const auto& r = first.rows;
  if (first.dense && (others.dense && ...)) return {1, r.count() * r.row_elements(), r.channels};
  return {r.count(), r.row_elements(), r.channels};
}

// Numbers that are dealt with at once: all streams of a block stay in the first two caches.
constexpr std::int64_t block_numbers = 16384;

// Calls body(run, offset, n) for all blocks, in parallel. Blocks begin with a period.
template <class Body>
void each_block(const Layout& layout, std::int64_t period, const Body& body) {
  const std::int64_t block = std::max<std::int64_t>(1, block_numbers / period) * period;
  const std::int64_t per_run = (layout.run + block - 1) / block;
  at::parallel_for(0, layout.runs * per_run, std::max<std::int64_t>(1, 32768 / block),
                   [&](std::int64_t begin, std::int64_t end) {
                     for (std::int64_t i = begin; i < end; ++i) {
                       const std::int64_t offset = i % per_run * block;
                       body(i / per_run, offset, std::min(block, layout.run - offset));
                     }
                   });
}

// ---- Sums over a whole slab ----

// Two sums a lane in the data's type, flushed into two sums a channel in double before they grow long.
template <class T>
class LaneSums {
 public:
  LaneSums(std::int64_t period, std::int64_t channels)
      : first_(static_cast<std::size_t>(period)),
        second_(first_.size()),
        total_first_(static_cast<std::size_t>(channels)),
        total_second_(total_first_.size()) {}
  Sums<T> lanes() { return {first_.data(), second_.data()}; }
  void added(std::int64_t numbers) {
    additions_ += numbers / static_cast<std::int64_t>(first_.size()) + 1;
    if (additions_ >= 512) flush();
  }
  void flush() {
    const std::size_t channels = total_first_.size();
    for (std::size_t at = 0; at < first_.size(); at += channels)
      for (std::size_t c = 0; c < channels; ++c) {
        total_first_[c] += static_cast<double>(first_[at + c]);
        total_second_[c] += static_cast<double>(second_[at + c]);
      }
    std::fill(first_.begin(), first_.end(), T(0));
    std::fill(second_.begin(), second_.end(), T(0));
    additions_ = 0;
  }
  const Channels& total_first() const { return total_first_; }
  const Channels& total_second() const { return total_second_; }

 private:
  std::vector<T> first_, second_;
  Channels total_first_, total_second_;
  std::int64_t additions_ = 0;
};

// One LaneSums a thread; added up in the order of the threads, so that a run repeats itself to the bit.
template <class T>
class ThreadSums {
 public:
  ThreadSums(std::int64_t period, std::int64_t channels)
      : mine_(static_cast<std::size_t>(at::get_num_threads()), LaneSums<T>(period, channels)) {}
  LaneSums<T>& here() { return mine_[static_cast<std::size_t>(at::get_thread_num())]; }
  std::pair<Channels, Channels> total() {
    std::pair<Channels, Channels> out{Channels(mine_[0].total_first().size()), Channels(mine_[0].total_first().size())};
    for (auto& sums : mine_) {
      sums.flush();
      for (std::size_t c = 0; c < out.first.size(); ++c) {
        out.first[c] += sums.total_first()[c];
        out.second[c] += sums.total_second()[c];
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
    for (std::size_t c = 0; c < guess.size(); ++c) guess[c] += static_cast<double>(p[c]) / samples;
  }
  return guess;
}

// An affine term with its coefficients repeated over a period.
template <class T>
struct TermData {
  TermData(const Affine& term, std::int64_t period)
      : x(stream_of<const T>(term.x)),
        mean(repeated<T>(term.mean, period)),
        scale(repeated<T>(term.scale, period)),
        shift(repeated<T>(term.shift, period)) {}
  Term<T> at(const Layout& layout, std::int64_t run, std::int64_t offset) const {
    return {x.at(layout, run) + offset, mean.data(), scale.data(), shift.data()};
  }
  Stream<const T> x;
  std::vector<T> mean, scale, shift;
};

template <class T, int terms>
void run_affine(const std::vector<Affine>& affines, bool relu, const at::Tensor& out) {
  const auto y = stream_of<T>(out);
  const std::int64_t period = lanes::period_of<T>(y.rows.channels);
  std::vector<TermData<T>> data;
  for (const auto& term : affines) data.emplace_back(term, period);
  const Layout layout = layout_of(y, data.front().x, data.back().x);
  const T floor = relu ? T(0) : -std::numeric_limits<T>::infinity();
  each_block(layout, period, [&](std::int64_t run, std::int64_t offset, std::int64_t n) {
    AffineLoop<T, terms> loop{y.at(layout, run) + offset, {}, floor};
    for (int t = 0; t < terms; ++t) loop.in[t] = data[static_cast<std::size_t>(t)].at(layout, run, offset);
    lanes::run(loop, n, period);
  });
}

// What gradient_sums was asked for, in runs.
template <class T>
struct SumsProblem {
  std::vector<Stream<const T>> dy;
  Stream<const T> output;
  std::vector<TermData<T>> mask, terms;
  Stream<T> g;
  Layout layout;
  std::int64_t period = 0;
  std::vector<ThreadSums<T>> sums;
};

template <class T, int gradients, MaskKind mask, int terms, bool write>
void run_sums(SumsProblem<T>& p) {
  each_block(p.layout, p.period, [&](std::int64_t run, std::int64_t offset, std::int64_t n) {
    SumsLoop<T, gradients, mask, terms, write> loop{};
    for (int i = 0; i < gradients; ++i) loop.dy[i] = p.dy[static_cast<std::size_t>(i)].at(p.layout, run) + offset;
    if constexpr (mask == MaskKind::output) loop.output = p.output.at(p.layout, run) + offset;
    if constexpr (mask == MaskKind::input) loop.mask_term = p.mask[0].at(p.layout, run, offset);
    for (int t = 0; t < terms; ++t) {
      const auto i = static_cast<std::size_t>(t);
      loop.in[t] = p.terms[i].at(p.layout, run, offset);
      loop.sums[t] = p.sums[i].here().lanes();
    }
    if constexpr (write) loop.g = p.g.at(p.layout, run) + offset;
    lanes::run(loop, n, p.period);
    for (int t = 0; t < terms; ++t) p.sums[static_cast<std::size_t>(t)].here().added(n);
  });
}

template <class T, int gradients, MaskKind mask>
void pick_sums(SumsProblem<T>& p) {
  const bool write = p.g.rows.data != nullptr;
  const std::size_t terms = p.terms.size();
  if (write && terms == 0) return run_sums<T, gradients, mask, 0, true>(p);
  if (write && terms == 1) return run_sums<T, gradients, mask, 1, true>(p);
  if (terms == 1) return run_sums<T, gradients, mask, 1, false>(p);
  // A mask in the input belongs to the one term there is.
  if constexpr (mask != MaskKind::input) {
    if (write) return run_sums<T, gradients, mask, 2, true>(p);
    return run_sums<T, gradients, mask, 2, false>(p);
  }
  ensure(false, "no loop for ", terms, " terms");
}

template <class T, int gradients>
void pick_sums(SumsProblem<T>& p) {
  if (p.output.rows.data) return pick_sums<T, gradients, MaskKind::output>(p);
  if (!p.mask.empty()) return pick_sums<T, gradients, MaskKind::input>(p);
  pick_sums<T, gradients, MaskKind::none>(p);
}

template <class T, bool masked, bool added>
void run_gradient(const at::Tensor& gradient, const Affine& term, const GradientCoefficients& k,
                  const at::Tensor& addend, const at::Tensor& result) {
  const auto g = stream_of<const T>(gradient);
  const auto plus = stream_of<const T>(addend);
  const auto dx = stream_of<T>(result);
  const std::int64_t period = lanes::period_of<T>(g.rows.channels);
  const TermData<T> in(term, period);
  const auto a = repeated<T>(k.a, period), b = repeated<T>(k.b, period), c = repeated<T>(k.c, period);
  const Layout layout = layout_of(g, plus, dx, in.x);
  each_block(layout, period, [&](std::int64_t run, std::int64_t offset, std::int64_t n) {
    lanes::run(GradientLoop<T, masked, added>{g.at(layout, run) + offset, in.at(layout, run, offset), a.data(),
                                              b.data(), c.data(), added ? plus.at(layout, run) + offset : nullptr,
                                              dx.at(layout, run) + offset},
               n, period);
  });
}

}  // namespace

Moments moments(const at::Tensor& tensor) {
  Moments out;
  AT_DISPATCH_FLOATING_TYPES(tensor.scalar_type(), "moments", [&] {
    const auto x = stream_of<const scalar_t>(tensor);
    const Layout layout = layout_of(x);
    const std::int64_t period = lanes::period_of<scalar_t>(layout.channels);
    const auto pivot = repeated<scalar_t>(guess_mean(x.rows), period);
    ThreadSums<scalar_t> sums(period, layout.channels);
    each_block(layout, period, [&](std::int64_t run, std::int64_t offset, std::int64_t n) {
      auto& mine = sums.here();
      lanes::run(MomentsLoop<scalar_t>{x.at(layout, run) + offset, pivot.data(), mine.lanes()}, n, period);
      mine.added(n);
    });
    auto [s1, s2] = sums.total();
    out.count = x.rows.count() * x.rows.width;
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
    if (terms.size() == 1)
      run_affine<scalar_t, 1>(terms, relu, out);
    else
      run_affine<scalar_t, 2>(terms, relu, out);
  });
}

std::vector<GradientSums> gradient_sums(const std::vector<at::Tensor>& gradients, const Mask& mask,
                                        const std::vector<const Affine*>& terms, const at::Tensor& g) {
  ensure(gradients.size() <= 2 && terms.size() <= 2, "no loop for ", gradients.size(), " gradients");
  std::vector<GradientSums> out;
  AT_DISPATCH_FLOATING_TYPES(gradients[0].scalar_type(), "gradient_sums", [&] {
    SumsProblem<scalar_t> p;
    for (const auto& t : gradients) p.dy.push_back(stream_of<const scalar_t>(t));
    p.output = stream_of<const scalar_t>(mask.output);
    p.g = stream_of<scalar_t>(g);
    p.period = lanes::period_of<scalar_t>(p.dy[0].rows.channels);
    if (mask.input) p.mask.emplace_back(*mask.input, p.period);
    for (const Affine* term : terms) p.terms.emplace_back(*term, p.period);
    const Stream<const scalar_t> none{{}, true};
    p.layout = layout_of(p.dy[0], p.dy.back(), p.output, p.g, mask.input ? p.mask[0].x : none,
                         terms.empty() ? none : p.terms.front().x, terms.empty() ? none : p.terms.back().x);
    for (std::size_t t = 0; t < terms.size(); ++t) p.sums.emplace_back(p.period, p.layout.channels);
    if (gradients.size() == 1)
      pick_sums<scalar_t, 1>(p);
    else
      pick_sums<scalar_t, 2>(p);
    for (auto& s : p.sums) {
      auto [s1, s2] = s.total();
      out.push_back({std::move(s1), std::move(s2)});
    }
  });
  return out;
}

void affine_gradient(const at::Tensor& g, const Affine& term, const GradientCoefficients& k,
                     const GradientOptions& options, const at::Tensor& dx) {
  AT_DISPATCH_FLOATING_TYPES(g.scalar_type(), "affine_gradient", [&] {
    const at::Tensor& addend = options.addend;
    if (options.mask)
      addend.defined() ? run_gradient<scalar_t, true, true>(g, term, k, addend, dx)
                       : run_gradient<scalar_t, true, false>(g, term, k, addend, dx);
    else
      addend.defined() ? run_gradient<scalar_t, false, true>(g, term, k, addend, dx)
                       : run_gradient<scalar_t, false, false>(g, term, k, addend, dx);
  });
}

}  // namespace tessera::loops
