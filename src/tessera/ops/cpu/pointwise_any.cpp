#include "tessera/ops/cpu/pointwise_any.h"

#include <ATen/Dispatch.h>

#include <limits>

#include "tessera/base/error.h"
#include "tessera/ops/cpu/pointwise_blocks.h"

namespace tessera::loops {
namespace {

// A few blocks of it stay in the first cache.
constexpr std::int64_t small_block = 2048;

// The terms of a formula in runs.
template <class T>
class Terms {
 public:
  Terms(const std::vector<const Affine*>& affines, std::int64_t period) : period_(period) {
    for (const Affine* a : affines) data_.emplace_back(*a, period);
  }
  Stream<const T> x(std::size_t t) const { return t < data_.size() ? data_[t].x : Stream<const T>{{}, true}; }
  const TermData<T>& operator[](std::size_t t) const { return data_[t]; }

  // One term on a block.
  void put(std::size_t t, const Runs& runs, std::int64_t run, std::int64_t offset, std::int64_t n, T* to) const {
    AffineLoop<T, 1> loop{to, {data_[t].at(runs, run, offset)}, -std::numeric_limits<T>::infinity()};
    run_loop(loop, n, period_);
  }
  // What the activation is applied to.
  void combine(Combine how, const Runs& runs, std::int64_t run, std::int64_t offset, std::int64_t n, T* to,
               T* scratch) const {
    if (data_.size() == 1) return put(0, runs, run, offset, n, to);
    if (how == Combine::sum) {
      AffineLoop<T, 2> loop{
          to, {data_[0].at(runs, run, offset), data_[1].at(runs, run, offset)}, -std::numeric_limits<T>::infinity()};
      return run_loop(loop, n, period_);
    }
    put(0, runs, run, offset, n, to);
    put(1, runs, run, offset, n, scratch);
    pointwise_loops<T>().multiply(to, scratch, to, n);
  }

 private:
  std::vector<TermData<T>> data_;
  std::int64_t period_;
};

template <class T>
std::int64_t block_of(std::int64_t period) {
  return std::max(small_block, period);
}

template <class T>
void run_any(const std::vector<Affine>& affines, const Formula& formula, const at::Tensor& out) {
  const auto y = stream_of<T>(out);
  const std::int64_t period = period_of<T>(y.rows.channels);
  std::vector<const Affine*> pointers;
  for (const Affine& a : affines) pointers.push_back(&a);
  const Terms<T> terms(pointers, period);
  const Runs runs = runs_of(y, terms.x(0), terms.x(1));
  each_block(
      runs, period,
      [&](std::int64_t run, std::int64_t offset, std::int64_t n) {
        thread_local std::vector<T> scratch;
        if (formula.combine == Combine::product) scratch.resize(static_cast<std::size_t>(n));
        T* const to = y.at(runs, run) + offset;
        terms.combine(formula.combine, runs, run, offset, n, to, scratch.data());
        if (formula.activation) pointwise_loops<T>().activate(*formula.activation, to, n);
      },
      block_of<T>(period));
}

template <class T>
std::vector<GradientSums> run_gradient_of_any(const std::vector<at::Tensor>& gradients, const Derivative& d,
                                              const std::vector<const Affine*>& summed,
                                              const std::array<at::Tensor, 2>& g) {
  std::vector<Stream<const T>> dy;
  for (const auto& t : gradients) dy.push_back(stream_of<const T>(t));
  const auto output = stream_of<const T>(d.output);
  const std::int64_t period = period_of<T>(dy[0].rows.channels);
  const Terms<T> terms(d.terms, period);
  const std::array<Stream<T>, 2> to{stream_of<T>(g[0]), stream_of<T>(g[1])};
  const bool product = d.formula.combine == Combine::product && d.terms.size() == 2;
  const Runs runs = runs_of(dy[0], dy.back(), output, to[0], to[1], terms.x(0), terms.x(1));
  std::vector<ThreadSums<T>> sums;
  for (std::size_t t = 0; t < summed.size(); ++t) sums.emplace_back(period, runs.channels);
  each_block(
      runs, period,
      [&](std::int64_t run, std::int64_t offset, std::int64_t n) {
        thread_local std::vector<T> scratch;
        scratch.resize(static_cast<std::size_t>(2 * n));
        T *const u = scratch.data(), *const v = u + n;
        T* const g0 = to[0].at(runs, run) + offset;
        const T* const dy0 = dy[0].at(runs, run) + offset;
        if (d.formula.activation && !d.output.defined()) terms.combine(d.formula.combine, runs, run, offset, n, u, v);
        if (dy.size() == 2)
          pointwise_loops<T>().add(dy0, dy[1].at(runs, run) + offset, g0, n);
        else if (g0 != dy0)
          std::copy(dy0, dy0 + n, g0);
        if (d.formula.activation)
          pointwise_loops<T>().derive(*d.formula.activation, d.output.defined(),
                                      d.output.defined() ? output.at(runs, run) + offset : u, g0, n);
        T* g_of[2] = {g0, g0};
        if (product) {
          terms.put(0, runs, run, offset, n, u);
          terms.put(1, runs, run, offset, n, v);
          g_of[1] = to[1].at(runs, run) + offset;
          pointwise_loops<T>().multiply(g0, u, g_of[1], n);
          pointwise_loops<T>().multiply(g0, v, g0, n);
        }
        for (std::size_t t = 0; t < summed.size(); ++t) {
          const std::size_t which = summed[t] == d.terms[0] ? 0 : 1;
          SumsLoop<T, 1, MaskKind::none, 1, false> loop{};
          loop.dy[0] = g_of[which];
          loop.in[0] = terms[which].at(runs, run, offset);
          loop.sums[0] = sums[t].here().lanes();
          run_loop(loop, n, period);
          sums[t].here().added(n);
        }
      },
      block_of<T>(period));
  std::vector<GradientSums> out;
  for (auto& s : sums) {
    auto [s1, s2] = s.total();
    out.push_back({std::move(s1), std::move(s2)});
  }
  return out;
}

}  // namespace

void evaluate_any(const std::vector<Affine>& terms, const Formula& formula, const at::Tensor& out) {
  AT_DISPATCH_FLOATING_TYPES(out.scalar_type(), "evaluate", [&] { run_any<scalar_t>(terms, formula, out); });
}

std::vector<GradientSums> gradient_sums_of_any(const std::vector<at::Tensor>& gradients, const Derivative& derivative,
                                               const std::vector<const Affine*>& summed,
                                               const std::array<at::Tensor, 2>& g) {
  ensure(g[0].defined(), "the gradient of this formula has no place");
  std::vector<GradientSums> out;
  AT_DISPATCH_FLOATING_TYPES(gradients[0].scalar_type(), "gradient_sums",
                             [&] { out = run_gradient_of_any<scalar_t>(gradients, derivative, summed, g); });
  return out;
}

}  // namespace tessera::loops
