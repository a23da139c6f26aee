#include "tessera/ops/cpu/pointwise_loops.h"

#include <ATen/Dispatch.h>

#include <limits>

#include "tessera/base/error.h"
#include "tessera/ops/cpu/pointwise_any.h"
#include "tessera/ops/cpu/pointwise_blocks.h"

namespace tessera::loops {
namespace {

template <class T, int terms>
void run_affine(const std::vector<Affine>& affines, bool relu, const at::Tensor& out) {
  const auto y = stream_of<T>(out);
  const std::int64_t period = period_of<T>(y.rows.channels);
  std::vector<TermData<T>> data;
  for (const auto& term : affines) data.emplace_back(term, period);
  const Runs runs = runs_of(y, data.front().x, data.back().x);
  const T floor = relu ? T(0) : -std::numeric_limits<T>::infinity();
  each_block(runs, period, [&](std::int64_t run, std::int64_t offset, std::int64_t n) {
    AffineLoop<T, terms> loop{y.at(runs, run) + offset, {}, floor};
    for (int t = 0; t < terms; ++t) loop.in[t] = data[static_cast<std::size_t>(t)].at(runs, run, offset);
    run_loop(loop, n, period);
  });
}

// What gradient_sums was asked for, in runs.
template <class T>
struct SumsProblem {
  std::vector<Stream<const T>> dy;
  Stream<const T> output;
  std::vector<TermData<T>> mask, terms;
  Stream<T> g;
  Runs runs;
  std::int64_t period = 0;
  std::vector<ThreadSums<T>> sums;
};

template <class T, int gradients, MaskKind mask, int terms, bool write>
void run_sums(SumsProblem<T>& p) {
  each_block(p.runs, p.period, [&](std::int64_t run, std::int64_t offset, std::int64_t n) {
    SumsLoop<T, gradients, mask, terms, write> loop{};
    for (int i = 0; i < gradients; ++i) loop.dy[i] = p.dy[static_cast<std::size_t>(i)].at(p.runs, run) + offset;
    if constexpr (mask == MaskKind::output) loop.output = p.output.at(p.runs, run) + offset;
    if constexpr (mask == MaskKind::input) loop.mask_term = p.mask[0].at(p.runs, run, offset);
    for (int t = 0; t < terms; ++t) {
      const auto i = static_cast<std::size_t>(t);
      loop.in[t] = p.terms[i].at(p.runs, run, offset);
      loop.sums[t] = p.sums[i].here().lanes();
    }
    if constexpr (write) loop.g = p.g.at(p.runs, run) + offset;
    run_loop(loop, n, p.period);
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
  const std::int64_t period = period_of<T>(g.rows.channels);
  const TermData<T> in(term, period);
  const auto a = repeated<T>(k.a, period), b = repeated<T>(k.b, period), c = repeated<T>(k.c, period);
  const Runs runs = runs_of(g, plus, dx, in.x);
  each_block(runs, period, [&](std::int64_t run, std::int64_t offset, std::int64_t n) {
    run_loop(
        GradientLoop<T, masked, added>{g.at(runs, run) + offset, in.at(runs, run, offset), a.data(), b.data(), c.data(),
                                       added ? plus.at(runs, run) + offset : nullptr, dx.at(runs, run) + offset},
        n, period);
  });
}

}  // namespace

Moments moments(const at::Tensor& tensor) {
  Moments out;
  AT_DISPATCH_FLOATING_TYPES(tensor.scalar_type(), "moments", [&] {
    const auto x = stream_of<const scalar_t>(tensor);
    const Runs runs = runs_of(x);
    const std::int64_t period = period_of<scalar_t>(runs.channels);
    const auto pivot = repeated<scalar_t>(guess_mean(x.rows), period);
    ThreadSums<scalar_t> sums(period, runs.channels);
    each_block(runs, period, [&](std::int64_t run, std::int64_t offset, std::int64_t n) {
      auto& mine = sums.here();
      run_loop(MomentsLoop<scalar_t>{x.at(runs, run) + offset, pivot.data(), mine.lanes()}, n, period);
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

void evaluate(const std::vector<Affine>& terms, const Formula& formula, const at::Tensor& out) {
  if (!formula.simple()) return evaluate_any(terms, formula, out);
  AT_DISPATCH_FLOATING_TYPES(out.scalar_type(), "affine_sum", [&] {
    if (terms.size() == 1)
      run_affine<scalar_t, 1>(terms, formula.is_relu(), out);
    else
      run_affine<scalar_t, 2>(terms, formula.is_relu(), out);
  });
}

std::vector<GradientSums> gradient_sums(const std::vector<at::Tensor>& gradients, const Derivative& derivative,
                                        const std::vector<const Affine*>& terms, const std::array<at::Tensor, 2>& g) {
  ensure(gradients.size() <= 2 && terms.size() <= 2, "no loop for ", gradients.size(), " gradients");
  // The mask of a ReLU is looked for in the output, or in one term; that of a sum of two is not simple.
  const bool masked_by_two =
      derivative.formula.is_relu() && !derivative.output.defined() && derivative.terms.size() > 1;
  if (!derivative.formula.simple() || masked_by_two) return gradient_sums_of_any(gradients, derivative, terms, g);
  const Affine* const mask =
      derivative.formula.is_relu() && !derivative.output.defined() ? derivative.terms[0] : nullptr;
  std::vector<GradientSums> out;
  AT_DISPATCH_FLOATING_TYPES(gradients[0].scalar_type(), "gradient_sums", [&] {
    SumsProblem<scalar_t> p;
    for (const auto& t : gradients) p.dy.push_back(stream_of<const scalar_t>(t));
    p.output = stream_of<const scalar_t>(derivative.output);
    p.g = stream_of<scalar_t>(g[0]);
    p.period = period_of<scalar_t>(p.dy[0].rows.channels);
    if (mask) p.mask.emplace_back(*mask, p.period);
    for (const Affine* term : terms) p.terms.emplace_back(*term, p.period);
    const Stream<const scalar_t> none{{}, true};
    p.runs = runs_of(p.dy[0], p.dy.back(), p.output, p.g, mask ? p.mask[0].x : none,
                     terms.empty() ? none : p.terms.front().x, terms.empty() ? none : p.terms.back().x);
    for (std::size_t t = 0; t < terms.size(); ++t) p.sums.emplace_back(p.period, p.runs.channels);
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
