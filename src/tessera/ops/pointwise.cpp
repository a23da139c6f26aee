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

// The moments of all parts of a group's values, from those of each: the same bits on every rank.
std::vector<loops::Moments> combined(const std::vector<loops::Moments>& mine, const KernelGroups& groups) {
  Communicator* const group = groups.norm;
  if (group == nullptr || mine.empty()) return mine;
  const Meter::Timed timed(groups.meter, Part::norms);
  const auto terms = static_cast<std::int64_t>(mine.size()), channels = static_cast<std::int64_t>(mine[0].mean.size());
  const std::int64_t length = 1 + 2 * channels;
  at::Tensor local = at::empty({terms * length}, at::kDouble);
  at::Tensor all = at::empty({group->size(), terms * length}, at::kDouble);
  double* to = local.data_ptr<double>();
  for (const auto& m : mine) {
    *to++ = static_cast<double>(m.count);
    to = std::copy(m.mean.begin(), m.mean.end(), to);
    to = std::copy(m.m2.begin(), m.m2.end(), to);
  }
  group->all_gather(local, all).wait();

  std::vector<loops::Moments> out(mine.size());
  for (std::size_t t = 0; t < out.size(); ++t) {
    loops::Moments& sum = out[t];
    sum.mean.assign(static_cast<std::size_t>(channels), 0.0);
    sum.m2 = sum.mean;
    for (int r = 0; r < group->size(); ++r) {
      const double* from = all.data_ptr<double>() + (r * terms + static_cast<std::int64_t>(t)) * length;
      const double *mean = from + 1, *m2 = mean + channels;
      if (from[0] == 0) continue;
      const double before = static_cast<double>(sum.count), total = before + from[0];
      for (std::size_t c = 0; c < sum.mean.size(); ++c) {
        const double delta = mean[c] - sum.mean[c];
        sum.m2[c] += m2[c] + delta * delta * before * from[0] / total;
        sum.mean[c] += delta * from[0] / total;
      }
      sum.count += static_cast<std::int64_t>(from[0]);
    }
  }
  return out;
}

// The backward sums of all terms over a group, in one message.
std::vector<loops::GradientSums> summed(std::vector<loops::GradientSums> sums, const KernelGroups& groups,
                                        const std::function<bool()>& meanwhile) {
  Communicator* const group = groups.norm;
  if (group == nullptr || sums.empty()) return sums;
  const auto channels = static_cast<std::int64_t>(sums[0].g.size());
  at::Tensor all = at::empty({static_cast<std::int64_t>(sums.size()), 2, channels}, at::kDouble);
  double* to = all.data_ptr<double>();
  for (const auto& s : sums) {
    to = std::copy(s.g.begin(), s.g.end(), to);
    to = std::copy(s.gx.begin(), s.gx.end(), to);
  }
  Pending pending = group->all_reduce(all);
  while (meanwhile && !pending.test() && meanwhile()) continue;
  const Meter::Timed timed(groups.meter, Part::norms);
  pending.wait();
  const double* from = all.data_ptr<double>();
  for (auto& s : sums) {
    s.g.assign(from, from + channels);
    s.gx.assign(from + channels, from + 2 * channels);
    from += 2 * channels;
  }
  return sums;
}

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
    if (args.pass.evaluating)
      use_running_statistics(args.saved);
    else
      take_statistics(args);
    if (!args.edges_ready || !args.into.defined()) return recompute(args);
    for (const Box& edge : difference(args.out, args.inside)) fill(args, args.into, edge);
    args.edges_ready();
    fill(args, args.into, args.inside);
    return args.into;
  }

  Slab recompute(const ForwardArgs& args) override {
    Slab out = args.into.defined() ? args.into : empty_slab(args.out, options_.channels, args.inputs[0].data.options());
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
      g = empty_slab(box, options_.channels, g.options()).data;
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
    const auto total = summed(sums, args.pass.groups, args.meanwhile);
    for (std::size_t t = 0, n = 0; t < out.size(); ++t) {
      if (!options_.terms[t].norm) continue;
      add_weight_gradients(options_.terms[t], sums[n], args.saved[3 * n + 1]);
      const auto k = coefficients(total[n], affines[t], args.saved[3 * n + 1], args.saved[3 * n + 2]);
      ++n;
      at::Tensor addend = t < args.addends.size() ? std::move(args.addends[t].data) : at::Tensor();
      // Written over what nobody else has: the addend, or g when this is the last one to read it. Only where these
      // have no gaps, because a convolution would copy what has.
      const auto usable = [](const at::Tensor& m) { return exclusive(m) && dense(m); };
      const at::Tensor dx = addend.defined() && usable(addend) ? addend
                            : n == normed.size() && usable(g)  ? g
                                                               : empty_slab(box, options_.channels, g.options()).data;
      write_gradient({g, box}, affines[t], k, {mask.input != nullptr, addend}, args.owned, {dx, box});
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
  void fill(const ForwardArgs& args, const Slab& out, const Box& box) const {
    std::vector<Affine> terms;
    for (std::size_t t = 0; t < options_.terms.size(); ++t)
      terms.push_back(affine(t, narrowed(args.inputs[t], box).data, args.saved));
    loops::affine_sum(terms, options_.relu, narrowed(out, box).data);
  }

  void take_statistics(const ForwardArgs& args) const {
    std::vector<const PointwiseTerm*> normed;
    std::vector<loops::Moments> moments;
    for (std::size_t t = 0; t < options_.terms.size(); ++t) {
      if (!options_.terms[t].norm) continue;
      normed.push_back(&options_.terms[t]);
      moments.push_back(loops::moments(narrowed(args.inputs[t], args.owned).data));
    }
    moments = combined(moments, args.pass.groups);
    for (std::size_t i = 0; i < normed.size(); ++i) normalise(*normed[i], moments[i], args);
  }

  // As normalise() saves them, but for the count, which only backward asks for. No rank has to be asked.
  void use_running_statistics(Saved& saved) const {
    for (const auto& term : options_.terms) {
      if (!term.norm) continue;
      saved.push_back(term.parameters.values[2].to(at::kDouble));
      saved.push_back(term.parameters.values[3].to(at::kDouble).add(term.norm->options.epsilon).rsqrt_());
      saved.emplace_back();
    }
  }

  // saved[3i], saved[3i+1], saved[3i+2]: mean, 1/deviation and count of the i-th norm, in double.
  void normalise(const PointwiseTerm& term, const loops::Moments& m, const ForwardArgs& args) const {
    require(m.count > 1, "node '", term.name, "' normalises over one number a channel; use a larger --batch-size or ",
            "--image-size, or fewer --parts");
    const auto count = static_cast<double>(m.count);
    Channels variance(m.m2), deviation(m.m2);
    for (std::size_t c = 0; c < m.m2.size(); ++c) {
      deviation[c] = 1.0 / std::sqrt(m.m2[c] / count + term.norm->options.epsilon);
      variance[c] = m.m2[c] / (count - 1);
    }
    const at::Tensor mean = to_tensor(m.mean);
    const StatisticsShare& s = args.pass.statistics;
    const double momentum = term.norm->options.momentum;
    const double weight = s.share * momentum * std::pow(1 - momentum, static_cast<double>(s.micros - 1 - s.micro));
    const auto& sums = term.parameters.gradients;  // weight, bias, running_mean, running_var, num_batches_tracked
    sums[2].add_(mean, weight);
    sums[3].add_(to_tensor(variance), weight);
    sums[4].add_(s.share);
    args.saved.push_back(mean);
    args.saved.push_back(to_tensor(deviation));
    args.saved.push_back(to_tensor({count}));
  }

  Affine affine(std::size_t t, const at::Tensor& x, const Saved& saved) const {
    const auto channels = static_cast<std::size_t>(options_.channels);
    const auto& term = options_.terms[t];
    if (!term.norm) return {x, Channels(channels, 0.0), Channels(channels, 1.0), Channels(channels, 0.0)};
    std::size_t at = 0;
    for (std::size_t before = 0; before < t; ++before) at += options_.terms[before].norm ? 3 : 0;
    Affine a{x, to_channels(saved[at]), to_channels(term.parameters.values[0]), to_channels(term.parameters.values[1])};
    const Channels deviation = to_channels(saved[at + 1]);
    for (std::size_t c = 0; c < channels; ++c) a.scale[c] *= deviation[c];
    return a;
  }

  // This rank's share; the gradient sync adds those of the others.
  void add_weight_gradients(const PointwiseTerm& term, const loops::GradientSums& sums,
                            const at::Tensor& deviation) const {
    term.parameters.gradients[0].add_(to_tensor(sums.gx).mul_(deviation));
    term.parameters.gradients[1].add_(to_tensor(sums.g));
  }

  // dx = a·g + b·(x - mean) + c, from the sums over all that was normalised together.
  static loops::GradientCoefficients coefficients(const loops::GradientSums& sums, const Affine& a,
                                                  const at::Tensor& saved_deviation, const at::Tensor& saved_count) {
    const Channels deviation = to_channels(saved_deviation);
    const double count = to_channels(saved_count)[0];
    loops::GradientCoefficients k{a.scale, a.scale, a.scale};
    for (std::size_t c = 0; c < deviation.size(); ++c) {
      k.b[c] *= -deviation[c] * deviation[c] * sums.gx[c] / count;
      k.c[c] *= -sums.g[c] / count;
    }
    return k;
  }

  // Pixels that other ranks own took no part in the statistics: their gradient is that of the scaling alone.
  static void write_gradient(const Slab& g, const Affine& term, const loops::GradientCoefficients& k,
                             const loops::GradientOptions& options, const Box& owned, const Slab& dx) {
    const auto on = [&](const Box& box, const loops::GradientCoefficients& coefficients) {
      const auto part = [&](const at::Tensor& t) { return t.defined() ? narrowed({t, g.box}, box).data : t; };
      Affine cut = term;
      cut.x = part(term.x);
      loops::affine_gradient(part(g.data), cut, coefficients, {options.mask, part(options.addend)}, part(dx.data));
    };
    on(owned, k);
    const Channels zero(k.a.size(), 0.0);
    for (const Box& box : difference(g.box, owned)) on(box, {k.a, zero, zero});
  }

  const PointwiseOptions options_;
};

}  // namespace

std::unique_ptr<Kernel> make_pointwise_kernel(PointwiseOptions options) {
  return std::make_unique<PointwiseKernel>(std::move(options));
}

}  // namespace tessera
