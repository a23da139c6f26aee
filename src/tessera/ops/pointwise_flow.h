// The order of the passes behind pointwise.h, the same on CPUs and GPUs. What a pass is, and where its coefficients and
// sums live, is for `Passes` to say: a struct of static functions on the slabs of one unit (all samples, or one).
//
//   Affine                              a term of the formula: its data x, and its coefficients
//   moments(x, norm)                    of the slab x: count, means, Σ (x - mean)² of each unit, as a flat tensor
//   normalise(term, gathered, units, share)  from the moments of all ranks; adds to the running statistics
//   use_running(term)                   from the statistics that the run has gathered, or none
//   affine(x, normed, unit)             `normed`: null for a value as it is
//   folded(affine, combine, row)        with a term of one position: `row` is its channels
//   evaluate(terms, formula, out)
//   evaluate_with_moments(...)          the same, and returns the moments of what it wrote, or undefined
//   gradient_sums(gradients, derivative, summed, g)  -> [summed, 2, channels] doubles
//   finish(term, normed, own, total, factor)  adds to the norm's gradients; the coefficients of its input's gradient,
//                                       [units, 3, channels]; `factor`: what the term was multiplied by, [units,
//                                       channels]
//   gradient(g, affine, k, unit, statistics, mask, addend, dx)
//   zeros(sizes, options)               doubles, where moments and sums live
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>

#include <span>

#include "tessera/base/error.h"
#include "tessera/ops/cpu/pointwise_loops.h"
#include "tessera/ops/pointwise.h"

namespace tessera {

template <class Passes>
class PointwiseFlow final : public Kernel {
  using Affine = typename Passes::Affine;
  using Derivative = typename Passes::Derivative;
  /// How the second term lies beside the first.
  enum class Spread { full, by_channel, by_position };

 public:
  explicit PointwiseFlow(PointwiseOptions options)
      : options_(std::move(options)), formula_{options_.combine, options_.activation} {
    ensure(!terms().empty() && terms().size() <= 2, "a point-wise step of ", terms().size(), " terms");
    if (terms().size() == 2 && terms()[1].shape != options_.shape)
      spread_ = terms()[1].shape.positions() == 1 ? Spread::by_channel : Spread::by_position;
    by_sample_ = spread_ == Spread::by_channel;
    for (const auto& term : terms()) by_sample_ = by_sample_ || (term.norm && term.norm->by_sample());
  }

  Offer offer(const ForwardArgs& args) override {
    std::vector<at::Tensor> all;
    for (std::size_t t = 0; t < terms().size() && !args.pass.evaluating; ++t)
      if (live(t)) all.push_back(moments_of(t, args));
    if (all.empty()) return {};
    return {all.size() == 1 ? all[0] : at::cat(all), Offer::How::gather};
  }

  Slab forward(const ForwardArgs& args) override {
    args.saved.clear();
    std::int64_t at = 0;
    for (std::size_t t = 0; t < terms().size(); ++t) {
      if (!terms()[t].norm) continue;
      Normed normed;
      if (live(t) && !args.pass.evaluating) {
        const std::int64_t units = units_of(t, args.owned), length = units * moments_length(t);
        // Alone, a rank knows how many numbers there are without asking its device.
        if (args.agreed.size(0) == 1)
          require_numbers(args.owned.volume() / units * channels() / ((moments_length(t) - 1) / 2), terms()[t]);
        normed = Passes::normalise(terms()[t], args.agreed.narrow(1, at, length), units, args.pass.statistics);
        at += length;
      } else {
        normed = Passes::use_running(terms()[t]);
      }
      args.saved.push_back(std::move(normed.coefficients));
      args.saved.push_back(std::move(normed.deviation));
    }
    if (args.out.empty()) return {{}, args.out};
    if (options_.moments && !by_sample_ && !args.pass.evaluating && !args.into.defined() && args.owned == args.out) {
      Slab out = place_for(args);
      out.moments = Passes::evaluate_with_moments(expression(args.inputs, args.saved, args.out, 0), formula_, out.data);
      return out;
    }
    if (!args.edges_ready || !args.into.defined()) return recompute(args);
    for (const Box& edge : difference(args.out, args.inside)) fill(args, args.into, edge);
    args.edges_ready();
    fill(args, args.into, args.inside);
    return args.into;
  }

  Slab recompute(const ForwardArgs& args) override {
    Slab out = place_for(args);
    fill(args, out, args.out);
    return out;
  }

  Offer offer_gradient(BackwardArgs& args) override {
    first_pass(args);
    std::vector<at::Tensor> all;
    for (std::size_t t = 0; t < terms().size(); ++t)
      if (live(t)) all.push_back(own_sums(args, t).flatten());
    if (all.empty()) return {};
    return {all.size() == 1 ? all[0] : at::cat(all)};
  }

  std::vector<Slab> input_gradients(BackwardArgs& args) override {
    if (args.between.empty()) first_pass(args);
    std::vector<Slab> out(terms().size());
    if (args.gradients.empty()) return out;  // this rank has no part of the output
    const Box box = args.gradients[0].box;
    args.gradients.clear();
    const bool masked = args.between[masked_later].defined();
    std::size_t readers = 0;  // of the first g, that write something of their own
    for (std::size_t t = 0; t < terms().size(); ++t) {
      const at::Tensor& g = args.between[g_of(t)];
      if (t == 1 && spread_ == Spread::by_channel)
        out[t] = gradient_by_channel(args, box);
      else if (t == 1 && spread_ == Spread::by_position)
        out[t] = {channels_last(g.sum({1}, /*keepdim=*/true)), box};
      else if (!terms()[t].norm && !has_factor(t))
        out[t] = {g, box};
      else if (g_of(t) == g_first)
        ++readers;
    }
    std::int64_t at = 0;
    for (std::size_t t = 0; t < terms().size(); ++t) {
      if (out[t].defined()) continue;
      const at::Tensor own = own_sums(args, t);
      at::Tensor total;
      if (live(t)) {
        total = args.agreed.narrow(0, at, own.numel()).view(own.sizes());
        at += own.numel();
      }
      const at::Tensor k = Passes::finish(terms()[t], normed_of(t, args.saved), own, total, factor_of(args, t));
      at::Tensor addend = t < args.addends.size() ? std::move(args.addends[t].data) : at::Tensor();
      at::Tensor g = args.between[g_of(t)];
      if (g_of(t) != g_first || --readers == 0) args.between[g_of(t)].reset();
      // Written over what nobody else has: the addend, or g when this is the last one to read it. Only where these
      // have no gaps, because a convolution would copy what has.
      const auto usable = [](const at::Tensor& m) { return exclusive(m) && dense(m); };
      const at::Tensor dx = addend.defined() && usable(addend) ? addend
                            : usable(g)                        ? g
                                                               : empty_slab(box, channels(), g.options()).data;
      write_gradient(args, t, {g, box}, k, masked, addend, {dx, box});
      out[t] = {dx, box};
    }
    return out;
  }

  bool takes_gradient_terms() const override { return true; }
  bool takes_addend(std::size_t input) const override {
    return terms()[input].norm.has_value() && terms()[input].shape == options_.shape;
  }
  bool runs_without_wanted() const override {
    return std::any_of(terms().begin(), terms().end(), [](const auto& t) { return t.norm.has_value(); });
  }

 private:
  // What first_pass() leaves in BackwardArgs::between. In a product the second term's gradient is another one.
  enum Between : std::size_t { g_first, g_second, sums, masked_later, between_size };

  const std::vector<PointwiseTerm>& terms() const { return options_.terms; }
  std::int64_t channels() const { return options_.shape.channels; }
  bool live(std::size_t t) const { return terms()[t].norm && terms()[t].norm->live(); }
  bool is_product() const { return options_.combine == Combine::product && terms().size() == 2; }
  std::int64_t units_of(std::size_t t, const Box& box) const {
    return terms()[t].norm->by_sample() ? box.batch().size() : 1;
  }
  std::int64_t moments_length(std::size_t t) const {
    const std::int64_t groups = terms()[t].norm->groups;
    return 1 + 2 * (groups > 0 ? groups : channels());
  }
  at::Tensor moments_of(std::size_t t, const ForwardArgs& args) const {
    if (args.owned.empty()) return Passes::zeros({units_of(t, args.owned) * moments_length(t)}, args.pass.options);
    const Slab& in = args.inputs[t];
    return Passes::moments(in.box == args.owned ? in : narrowed(in, args.owned), *terms()[t].norm);
  }

  Slab place_for(const ForwardArgs& args) const { return args.place(channels(), args.inputs[0].data.options()); }

  // The parts of a box that share their coefficients, with the number of their first sample.
  struct Part {
    Box box;
    std::int64_t unit = 0;
  };
  std::vector<Part> parts_of(const Box& box) const {
    if (!by_sample_) return {{box, 0}};
    std::vector<Part> parts;
    for (std::int64_t s = box.batch().begin; s < box.batch().end; ++s) {
      parts.push_back({box, s - box.batch().begin});
      parts.back().box[Axis::batch] = {s, s + 1};
    }
    return parts;
  }

  Normed normed_of(std::size_t t, const Saved& saved) const {
    if (!terms()[t].norm) return {};
    const std::size_t at = t == 1 && terms()[0].norm ? 2 : 0;
    return {saved[at], saved[at + 1]};
  }

  // Term t on its own, before anything is folded into it.
  Affine affine(std::span<const Slab> inputs, const Saved& saved, std::size_t t, const Box& box,
                std::int64_t unit) const {
    at::Tensor x;
    if (t == 1 && spread_ == Spread::by_position)
      x = channels_last(narrowed(inputs[1], box).data.expand({-1, channels(), -1, -1}));
    else
      x = narrowed(inputs[t], box).data;
    const Normed normed = normed_of(t, saved);
    const bool one = !terms()[t].norm || !terms()[t].norm->by_sample();
    return Passes::affine(std::move(x), terms()[t].norm ? &normed : nullptr, one ? 0 : unit, channels());
  }
  // The channels of the term of one position, for a sample.
  at::Tensor row_of(std::span<const Slab> inputs, const Box& box) const {
    Box one = terms()[1].shape.box(box.batch());
    return narrowed(inputs[1], one).data.flatten();
  }
  std::vector<Affine> expression(std::span<const Slab> inputs, const Saved& saved, const Box& box,
                                 std::int64_t unit) const {
    std::vector<Affine> out{affine(inputs, saved, 0, box, unit)};
    if (spread_ == Spread::by_channel)
      out[0] = Passes::folded(std::move(out[0]), options_.combine, row_of(inputs, box), channels());
    else if (terms().size() == 2)
      out.push_back(affine(inputs, saved, 1, box, unit));
    return out;
  }

  void fill(const ForwardArgs& args, const Slab& out, const Box& box) const {
    for (const Part& part : parts_of(box))
      Passes::evaluate(expression(args.inputs, args.saved, part.box, part.unit), formula_,
                       narrowed(out, part.box).data);
  }

  // Which terms' sums are wanted: those of norms, and of what a term of one position was folded into.
  bool summed(std::size_t t) const { return terms()[t].norm.has_value() || (t == 0 && spread_ == Spread::by_channel); }
  std::size_t g_of(std::size_t t) const {
    return t == 1 && is_product() && spread_ != Spread::by_channel ? g_second : g_first;
  }

  // g, and the sums that norms and folded terms want of it.
  void first_pass(BackwardArgs& args) const {
    args.between.assign(between_size, {});
    if (args.gradients.empty()) return;
    const Box box = args.gradients[0].box;
    std::vector<at::Tensor> gradients;
    for (auto& slab : args.gradients) gradients.push_back(std::move(slab.data));

    const bool relu = formula_.is_relu();
    const bool any_sums = summed(0) || (terms().size() == 2 && summed(1));
    // One norm whose mask is in its own input can do without g in memory: both passes make it again on the way.
    const bool own_mask = terms().size() == 1 && terms()[0].norm && !options_.by_output;
    const bool write = gradients.size() > 1 || !formula_.simple() || (relu && !own_mask);
    at::Tensor g = gradients[0];
    gradients[0].reset();
    if (write && !exclusive(g)) {
      gradients[0] = g;
      g = empty_slab(box, channels(), g.options()).data;
    }
    if (!gradients[0].defined()) gradients[0] = g;
    at::Tensor second;
    if (is_product() && spread_ != Spread::by_channel) second = empty_slab(box, channels(), g.options()).data;
    std::vector<at::Tensor> all;
    if (write || any_sums)
      for (const Part& part : parts_of(box)) {
        const auto cut = [&](const at::Tensor& t) { return t.defined() ? narrowed({t, box}, part.box).data : t; };
        std::vector<at::Tensor> sources;
        for (const auto& t : gradients) sources.push_back(cut(t));
        all.push_back(sums_of(args, part, sources, {write ? cut(g) : at::Tensor(), cut(second)}));
      }
    args.between[g_first] = std::move(g);
    args.between[g_second] = std::move(second);
    if (any_sums) args.between[sums] = at::stack(all);  // [parts, summed, 2, channels]
    if (relu && !write) args.between[masked_later] = Passes::zeros({0}, args.pass.options);
  }

  at::Tensor sums_of(const BackwardArgs& args, const Part& part, const std::vector<at::Tensor>& gradients,
                     const std::array<at::Tensor, 2>& g) const {
    Derivative d{.formula = formula_, .output = {}, .terms = {}};
    if (options_.activation && options_.by_output) d.output = narrowed(args.output, part.box).data;
    const bool reads_all = is_product() || (options_.activation && !options_.by_output);
    std::vector<Affine> affines;
    affines.reserve(2);
    std::vector<const Affine*> wanted;
    if (reads_all && spread_ == Spread::by_channel) {
      // The folded term is what the activation saw; the sums are those of the term itself.
      affines = expression(args.inputs, args.saved, part.box, part.unit);
      d.terms = {&affines[0]};
      wanted = d.terms;
      return Passes::gradient_sums(gradients, d, wanted, g);
    }
    for (std::size_t t = 0; t < terms().size(); ++t) {
      if (t == 1 && spread_ == Spread::by_channel) continue;
      if (!reads_all && !summed(t)) continue;
      affines.push_back(affine(args.inputs, args.saved, t, part.box, part.unit));
      d.terms.push_back(&affines.back());
      if (summed(t)) wanted.push_back(&affines.back());
    }
    return Passes::gradient_sums(gradients, d, wanted, g);
  }

  bool has_factor(std::size_t t) const {
    return t == 0 && spread_ == Spread::by_channel && options_.combine == Combine::product;
  }
  // What term t was multiplied by, for each sample and channel; undefined: nothing.
  at::Tensor factor_of(const BackwardArgs& args, std::size_t t) const {
    if (!has_factor(t)) return {};
    const at::Tensor rows = args.inputs[1].data.flatten(1).to(at::kDouble);
    return rows.size(1) == channels() ? rows : rows.expand({-1, channels()}).contiguous();
  }

  // This rank's sums for the norm of term t: [units, 2, channels].
  at::Tensor own_sums(const BackwardArgs& args, std::size_t t) const {
    const bool norm = terms()[t].norm.has_value();
    if (!args.between[sums].defined()) {
      const std::int64_t units = norm && terms()[t].norm->by_sample() ? args.owned.batch().size() : 1;
      return norm ? Passes::zeros({units, 2, channels()}, args.pass.options) : at::Tensor();
    }
    std::int64_t at = 0;
    for (std::size_t before = 0; before < t; ++before) at += summed(before) ? 1 : 0;
    at::Tensor own = args.between[sums].select(1, at);
    if (const at::Tensor factor = factor_of(args, t); factor.defined()) own = own * factor.unsqueeze(1);
    if (norm && !terms()[t].norm->by_sample() && own.size(0) > 1) own = own.sum({0}, /*keepdim=*/true);
    return own;
  }

  // The gradient of a term of one position: of a sum Σ g, of a product Σ g·a, and a = scale·(x - mean) + shift.
  Slab gradient_by_channel(const BackwardArgs& args, const Box& box) const {
    const at::Tensor raw = args.between[sums].select(1, 0);  // [samples, 2, channels]
    at::Tensor rows = raw.select(1, 0);
    if (options_.combine == Combine::product) {
      const Normed normed = normed_of(0, args.saved);
      if (terms()[0].norm) {
        const at::Tensor k = normed.coefficients.to(at::kDouble);
        rows = raw.select(1, 1) * k.select(1, 1) + rows * k.select(1, 2);
      } else {
        rows = raw.select(1, 1);
      }
    }
    if (terms()[1].shape.channels == 1) rows = rows.sum({1}, /*keepdim=*/true);
    const at::Tensor dense = rows.to(args.pass.options.dtype().toScalarType()).contiguous();
    return {channels_last(dense.unsqueeze(2).unsqueeze(3)), terms()[1].shape.box(box.batch())};
  }

  // Pixels that other ranks own took no part in the statistics: their gradient is that of the scaling alone.
  void write_gradient(const BackwardArgs& args, std::size_t t, const Slab& g, const at::Tensor& k, bool mask,
                      const at::Tensor& addend, const Slab& dx) const {
    const auto on = [&](const Box& box, bool statistics) {
      for (const Part& part : parts_of(box)) {
        const auto cut = [&](const at::Tensor& x) { return x.defined() ? narrowed({x, g.box}, part.box).data : x; };
        const std::int64_t sample = part.box.batch().begin - g.box.batch().begin;
        const std::int64_t unit = k.size(0) > 1 ? sample : 0;
        const Affine term = terms()[t].norm ? affine(args.inputs, args.saved, t, part.box, by_sample_ ? sample : 0)
                                            : Passes::affine(cut(g.data), nullptr, 0, channels());
        Passes::gradient(cut(g.data), term, k, unit, statistics, mask, cut(addend), cut(dx.data));
      }
    };
    const bool all = !live(t);
    on(all ? g.box : intersect(g.box, args.owned), !all);
    if (!all)
      for (const Box& box : difference(g.box, args.owned)) on(box, false);
  }

  const PointwiseOptions options_;
  const loops::Formula formula_;
  Spread spread_ = Spread::full;
  bool by_sample_ = false;
};

}  // namespace tessera
