// The order of the passes behind pointwise.h, the same on CPUs and GPUs. What a pass is, and where its coefficients and
// sums live, is for `Passes` to say: a struct of static functions.
//
//   Affine, Moments, Sums, Coefficients    types; Affine has the member x
//   saved_per_norm                         tensors that a norm leaves in `saved`
//   moments(x)                             over all positions of the slab x
//   normalise(terms, moments, args)        agrees with the group, adds to the running statistics, leaves its tensors in
//                                          args.saved, norm after norm
//   use_running_statistics(term, saved)    leaves what affine() asks for, of the statistics that the run has gathered
//   affine(term, x, saved, channels)       `saved`: those of this term's norm
//   affine_sum(terms, relu, out)
//   sum_with_moments(terms, relu, out)     the same, and returns the moments of what it wrote, for Slab::moments
//   gradient_sums(gradients, output, input, terms, g)  masked by `output` or by the affine `input`
//   summed(sums, groups, meanwhile)        over the group; see finish_agreement()
//   finish(term, affine, own, total, n, saved)  adds to the gradients of the n-th norm; returns a, b, c
//   affine_gradient(g, term, k, statistics, mask, addend, dx)
#pragma once

#include <span>

#include "tessera/base/error.h"
#include "tessera/ops/pointwise.h"

namespace tessera {

/// Waits for what the ranks of a norm agree on in backward; as long as it is under way there is other work to do.
inline void finish_agreement(Pending pending, const KernelGroups& groups, const std::function<bool()>& meanwhile) {
  while (meanwhile && !pending.test() && meanwhile()) continue;
  const Meter::Timed timed(groups.meter, Part::norms);
  pending.wait();
}

template <class Passes>
class PointwiseFlow final : public Kernel {
  using Affine = typename Passes::Affine;
  using Coefficients = typename Passes::Coefficients;

 public:
  explicit PointwiseFlow(PointwiseOptions options) : options_(std::move(options)) {
    ensure(!options_.terms.empty() && options_.terms.size() <= pointwise_max_terms, "a point-wise step of ",
           options_.terms.size(), " terms");
    ensure(!options_.relu || options_.mask_from_output || options_.terms.size() == 1,
           "the mask of a sum cannot be read from one term");
  }

  Slab forward(const ForwardArgs& args) override {
    args.saved.clear();
    if (args.pass.evaluating)
      use_running_statistics(args.saved);
    else
      take_statistics(args);
    if (options_.moments && !args.pass.evaluating && !args.into.defined() && args.owned == args.out) {
      Slab out = place_for(args);
      out.moments = Passes::sum_with_moments(terms_in(args, args.out), options_.relu, out.data);
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

  std::vector<Slab> input_gradients(BackwardArgs& args) override {
    const Box box = args.gradients[0].box;
    std::vector<at::Tensor> gradients;
    for (auto& slab : args.gradients) gradients.push_back(std::move(slab.data));
    args.gradients.clear();

    std::vector<Affine> affines(options_.terms.size());
    std::vector<const Affine*> normed;
    for (std::size_t t = 0; t < affines.size(); ++t) {
      const bool masks = options_.relu && !options_.mask_from_output;
      if (options_.terms[t].norm || masks) affines[t] = affine(t, narrowed(args.inputs[t], box).data, args.saved);
      if (options_.terms[t].norm) normed.push_back(&affines[t]);
    }
    at::Tensor mask_output;
    const Affine* mask_input = nullptr;
    if (options_.relu && options_.mask_from_output) mask_output = narrowed(args.output, box).data;
    if (options_.relu && !options_.mask_from_output) mask_input = &affines[0];

    const bool summing = gradients.size() > 1;
    const bool shared = normed.size() < options_.terms.size();  // some term takes g as it is
    // One norm whose mask is in its own input can do without g in memory: both passes make it again on the way.
    const bool write_g = summing || (options_.relu && (shared || normed.size() > 1 || options_.mask_from_output));
    at::Tensor g = gradients[0];
    gradients[0].reset();
    if (write_g && !exclusive(g)) {
      gradients[0] = g;
      g = empty_slab(box, options_.channels, g.options()).data;
    }
    std::vector<at::Tensor> sources = gradients;
    if (!sources[0].defined()) sources[0] = g;
    typename Passes::Sums sums;
    if (write_g || !normed.empty())
      sums = Passes::gradient_sums(sources, mask_output, mask_input, normed, write_g ? g : at::Tensor());
    if (write_g) mask_input = nullptr;
    mask_output.reset();
    sources.clear();
    gradients.clear();

    std::vector<Slab> out(options_.terms.size());
    for (std::size_t t = 0; t < out.size(); ++t)
      if (!options_.terms[t].norm) out[t] = {g, box};
    if (normed.empty()) return out;
    const typename Passes::Sums total = Passes::summed(sums, args.pass.groups, args.meanwhile);
    for (std::size_t t = 0, n = 0; t < out.size(); ++t) {
      if (!options_.terms[t].norm) continue;
      const Coefficients k = Passes::finish(options_.terms[t], affines[t], sums, total, n, saved_of(t, args.saved));
      ++n;
      at::Tensor addend = t < args.addends.size() ? std::move(args.addends[t].data) : at::Tensor();
      // Written over what nobody else has: the addend, or g when this is the last one to read it. Only where these
      // have no gaps, because a convolution would copy what has.
      const auto usable = [](const at::Tensor& m) { return exclusive(m) && dense(m); };
      const at::Tensor dx = addend.defined() && usable(addend) ? addend
                            : n == normed.size() && usable(g)  ? g
                                                               : empty_slab(box, options_.channels, g.options()).data;
      write_gradient({g, box}, affines[t], k, mask_input != nullptr, addend, args.owned, {dx, box});
      out[t] = {dx, box};
    }
    return out;
  }

  BackwardNeeds needs() const override {
    BackwardNeeds needs;
    for (const auto& term : options_.terms)
      needs.inputs.push_back(term.norm || (options_.relu && !options_.mask_from_output));
    needs.output = options_.relu && options_.mask_from_output;
    return needs;
  }
  bool takes_gradient_terms() const override { return true; }
  bool takes_addend(std::size_t input) const override { return options_.terms[input].norm != nullptr; }

 private:
  Slab place_for(const ForwardArgs& args) const {
    return args.into.defined() ? args.into : empty_slab(args.out, options_.channels, args.inputs[0].data.options());
  }

  void take_statistics(const ForwardArgs& args) const {
    std::vector<const PointwiseTerm*> normed;
    std::vector<typename Passes::Moments> moments;
    for (std::size_t t = 0; t < options_.terms.size(); ++t) {
      if (!options_.terms[t].norm) continue;
      normed.push_back(&options_.terms[t]);
      const Slab& in = args.inputs[t];
      moments.push_back(Passes::moments(in.box == args.owned ? in : narrowed(in, args.owned)));
    }
    if (!normed.empty()) Passes::normalise(normed, std::move(moments), args);
  }

  // No rank has to be asked.
  void use_running_statistics(Saved& saved) const {
    for (const auto& term : options_.terms)
      if (term.norm) Passes::use_running_statistics(term, saved);
  }

  std::vector<Affine> terms_in(const ForwardArgs& args, const Box& box) const {
    std::vector<Affine> terms;
    for (std::size_t t = 0; t < options_.terms.size(); ++t)
      terms.push_back(affine(t, narrowed(args.inputs[t], box).data, args.saved));
    return terms;
  }
  void fill(const ForwardArgs& args, const Slab& out, const Box& box) const {
    Passes::affine_sum(terms_in(args, box), options_.relu, narrowed(out, box).data);
  }

  // What the norm of term t has left.
  std::span<const at::Tensor> saved_of(std::size_t t, const Saved& saved) const {
    if (!options_.terms[t].norm) return {};
    std::size_t at = 0;
    for (std::size_t before = 0; before < t; ++before) at += options_.terms[before].norm ? Passes::saved_per_norm : 0;
    return std::span(saved).subspan(at, Passes::saved_per_norm);
  }

  Affine affine(std::size_t t, const at::Tensor& x, const Saved& saved) const {
    return Passes::affine(options_.terms[t], x, saved_of(t, saved), options_.channels);
  }

  // Pixels that other ranks own took no part in the statistics: their gradient is that of the scaling alone.
  static void write_gradient(const Slab& g, const Affine& term, const Coefficients& k, bool mask,
                             const at::Tensor& addend, const Box& owned, const Slab& dx) {
    const auto on = [&](const Box& box, bool statistics) {
      const auto part = [&](const at::Tensor& t) { return t.defined() ? narrowed({t, g.box}, box).data : t; };
      Affine cut = term;
      cut.x = part(term.x);
      Passes::affine_gradient(part(g.data), cut, k, statistics, mask, part(addend), part(dx.data));
    };
    on(owned, true);
    for (const Box& box : difference(g.box, owned)) on(box, false);
  }

  const PointwiseOptions options_;
};

}  // namespace tessera
