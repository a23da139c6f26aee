#include "tessera/ops/pointwise.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <cmath>

#include "tessera/base/error.h"
#include "tessera/ops/pointwise_loops.h"

namespace tessera {
namespace {

using loops::Affine;
using loops::Channels;

Channels to_channels(const at::Tensor& t) {
  const at::Tensor d = t.to(at::kDouble).contiguous();
  return {d.data_ptr<double>(), d.data_ptr<double>() + d.numel()};
}

at::Tensor to_tensor(const Channels& values) {
  at::Tensor t = at::empty({static_cast<std::int64_t>(values.size())}, at::kDouble);
  std::copy(values.begin(), values.end(), t.data_ptr<double>());
  return t;
}

// Whether writing into this tensor disturbs nobody.
bool exclusive(const at::Tensor& t) { return t.use_count() == 1 && t.storage().use_count() == 1; }

class PointwiseKernel final : public Kernel {
 public:
  explicit PointwiseKernel(PointwiseOptions options) : options_(std::move(options)) {
    ensure(!options_.terms.empty() && options_.terms.size() <= pointwise_max_terms, "a point-wise step of ",
           options_.terms.size(), " terms");
    ensure(!options_.relu || options_.mask_from_output || options_.terms.size() == 1,
           "the mask of a sum cannot be read from one term");
  }

  Slab forward(const ForwardArgs& args) override {
    args.saved.clear();
    for (std::size_t t = 0; t < options_.terms.size(); ++t)
      if (options_.terms[t].norm) normalise(options_.terms[t], narrowed(args.inputs[t], args.out), args.saved);
    return recompute(args);
  }

  Slab recompute(const ForwardArgs& args) override {
    Slab out = empty_slab(args.out, options_.channels, args.inputs[0].data.options());
    std::vector<Affine> terms;
    for (std::size_t t = 0; t < options_.terms.size(); ++t)
      terms.push_back(affine(t, narrowed(args.inputs[t], args.out).data, args.saved));
    loops::affine_sum(terms, options_.relu, out.data);
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
    loops::Mask mask;
    if (options_.relu && options_.mask_from_output) mask.output = narrowed(args.output, box).data;
    if (options_.relu && !options_.mask_from_output) mask.input = &affines[0];

    const bool summing = gradients.size() > 1;
    const bool shared = normed.size() < options_.terms.size();  // some term takes g as it is
    // One norm whose mask is in its own input can do without g in memory: both passes make it again on the way.
    const bool write_g = summing || (options_.relu && (shared || normed.size() > 1 || options_.mask_from_output));
    at::Tensor g = gradients[0];
    gradients[0].reset();
    if (write_g && !exclusive(g)) {
      gradients[0] = g;
      g = at::empty_like(g);
    }
    std::vector<at::Tensor> sources = gradients;
    if (!sources[0].defined()) sources[0] = g;
    std::vector<loops::GradientSums> sums;
    if (write_g || !normed.empty()) sums = loops::gradient_sums(sources, mask, normed, write_g ? g : at::Tensor());
    if (write_g) mask = {};
    sources.clear();
    gradients.clear();

    std::vector<Slab> out(options_.terms.size());
    for (std::size_t t = 0; t < out.size(); ++t)
      if (!options_.terms[t].norm) out[t] = {g, box};
    for (std::size_t t = 0, n = 0; t < out.size(); ++t) {
      if (!options_.terms[t].norm) continue;
      const auto k = finish_sums(options_.terms[t], sums[n], affines[t], args.saved[2 * n + 1], box);
      ++n;
      at::Tensor addend = t < args.addends.size() ? std::move(args.addends[t].data) : at::Tensor();
      // Written over what nobody else has: the addend, or g when this is the last one to read it.
      const at::Tensor dx = addend.defined() && exclusive(addend) ? addend
                            : n == normed.size() && exclusive(g)  ? g
                                                                  : at::empty_like(g);
      loops::affine_gradient(g, affines[t], k, {.mask = mask.input != nullptr, .addend = addend}, dx);
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
  // saved[2i], saved[2i+1]: mean and 1/deviation of the i-th norm, in double.
  void normalise(const PointwiseTerm& term, const Slab& x, Saved& saved) const {
    loops::Moments m = loops::moments(x.data);
    require(m.count > 1, "node '", term.name, "' normalises over one number a channel; use a larger --batch-size or ",
            "--image-size, or fewer --parts");
    const auto count = static_cast<double>(m.count);
    Channels variance(m.m2), deviation(m.m2);
    for (std::size_t c = 0; c < m.m2.size(); ++c) {
      deviation[c] = 1.0 / std::sqrt(m.m2[c] / count + term.norm->options.epsilon);
      variance[c] = m.m2[c] / (count - 1);
    }
    const double momentum = term.norm->options.momentum;
    const auto& values = term.parameters.values;  // weight, bias, running_mean, running_var, num_batches_tracked
    values[2].mul_(1 - momentum).add_(to_tensor(m.mean), momentum);
    values[3].mul_(1 - momentum).add_(to_tensor(variance), momentum);
    values[4].add_(1);
    saved.push_back(to_tensor(m.mean));
    saved.push_back(to_tensor(deviation));
  }

  Affine affine(std::size_t t, const at::Tensor& x, const Saved& saved) const {
    const auto channels = static_cast<std::size_t>(options_.channels);
    const auto& term = options_.terms[t];
    if (!term.norm) return {x, Channels(channels, 0.0), Channels(channels, 1.0), Channels(channels, 0.0)};
    std::size_t at = 0;
    for (std::size_t before = 0; before < t; ++before) at += options_.terms[before].norm ? 2 : 0;
    Affine a{x, to_channels(saved[at]), to_channels(term.parameters.values[0]), to_channels(term.parameters.values[1])};
    const Channels deviation = to_channels(saved[at + 1]);
    for (std::size_t c = 0; c < channels; ++c) a.scale[c] *= deviation[c];
    return a;
  }

  // Adds the gradients of weight and bias, and gives dx = a·g + b·(x - mean) + c.
  loops::GradientCoefficients finish_sums(const PointwiseTerm& term, const loops::GradientSums& sums, const Affine& a,
                                          const at::Tensor& saved_deviation, const Box& box) const {
    const Channels deviation = to_channels(saved_deviation);
    const auto count = static_cast<double>(box.volume());
    Channels weight_gradient(sums.gx);
    loops::GradientCoefficients k{a.scale, a.scale, a.scale};
    for (std::size_t c = 0; c < deviation.size(); ++c) {
      weight_gradient[c] *= deviation[c];
      k.b[c] *= -deviation[c] * deviation[c] * sums.gx[c] / count;
      k.c[c] *= -sums.g[c] / count;
    }
    term.parameters.gradients[0].add_(to_tensor(weight_gradient));
    term.parameters.gradients[1].add_(to_tensor(sums.g));
    return k;
  }

  const PointwiseOptions options_;
};

}  // namespace

std::unique_ptr<Kernel> make_pointwise_kernel(PointwiseOptions options) {
  return std::make_unique<PointwiseKernel>(std::move(options));
}

}  // namespace tessera
