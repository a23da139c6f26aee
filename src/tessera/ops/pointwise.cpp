#include "tessera/ops/pointwise.h"

#include <ATen/ops/empty.h>

#include <cmath>

#include "tessera/ops/pointwise_flow.h"
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
  finish_agreement(group->all_reduce(all), groups, meanwhile);
  const double* from = all.data_ptr<double>();
  for (auto& s : sums) {
    s.g.assign(from, from + channels);
    s.gx.assign(from + channels, from + 2 * channels);
    from += 2 * channels;
  }
  return sums;
}

// On CPUs coefficients and sums are vectors of doubles.
struct HostPasses {
  using Affine = loops::Affine;
  using Moments = loops::Moments;
  using Sums = std::vector<loops::GradientSums>;
  using Coefficients = loops::GradientCoefficients;
  static constexpr std::size_t saved_per_norm = 3;  // mean, 1/deviation and count, in double

  static Moments moments(const Slab& x) { return loops::moments(x.data); }

  static void normalise(const std::vector<const PointwiseTerm*>& terms, const std::vector<Moments>& mine,
                        const ForwardArgs& args) {
    const auto all = combined(mine, args.pass.groups);
    for (std::size_t i = 0; i < terms.size(); ++i) normalise(*terms[i], all[i], args);
  }

  // As normalise() saves them, but for the count, which only backward asks for.
  static void use_running_statistics(const PointwiseTerm& term, Saved& saved) {
    saved.push_back(term.parameters.values[2].to(at::kDouble));
    saved.push_back(term.parameters.values[3].to(at::kDouble).add(term.norm->options.epsilon).rsqrt_());
    saved.emplace_back();
  }

  static Affine affine(const PointwiseTerm& term, const at::Tensor& x, std::span<const at::Tensor> saved,
                       std::int64_t channel_count) {
    const auto channels = static_cast<std::size_t>(channel_count);
    if (!term.norm) return {x, Channels(channels, 0.0), Channels(channels, 1.0), Channels(channels, 0.0)};
    Affine a{x, to_channels(saved[0]), to_channels(term.parameters.values[0]), to_channels(term.parameters.values[1])};
    const Channels deviation = to_channels(saved[1]);
    for (std::size_t c = 0; c < channels; ++c) a.scale[c] *= deviation[c];
    return a;
  }

  static void affine_sum(const std::vector<Affine>& terms, bool relu, const at::Tensor& out) {
    loops::affine_sum(terms, relu, out);
  }
  static at::Tensor sum_with_moments(const std::vector<Affine>& terms, bool relu, const at::Tensor& out) {
    affine_sum(terms, relu, out);
    return {};
  }
  static Sums gradient_sums(const std::vector<at::Tensor>& gradients, const at::Tensor& mask_output,
                            const Affine* mask_input, const std::vector<const Affine*>& terms, const at::Tensor& g) {
    return loops::gradient_sums(gradients, {mask_output, mask_input}, terms, g);
  }
  static Sums summed(const Sums& sums, const KernelGroups& groups, const std::function<bool()>& meanwhile) {
    return tessera::summed(sums, groups, meanwhile);
  }

  static Coefficients finish(const PointwiseTerm& term, const Affine& a, const Sums& own, const Sums& total,
                             std::size_t n, std::span<const at::Tensor> saved) {
    // This rank's share; the gradient sync adds those of the others.
    term.parameters.gradients[0].add_(to_tensor(own[n].gx).mul_(saved[1]));
    term.parameters.gradients[1].add_(to_tensor(own[n].g));
    // dx = a·g + b·(x - mean) + c, from the sums over all that was normalised together.
    const Channels deviation = to_channels(saved[1]);
    const double count = to_channels(saved[2])[0];
    Coefficients k{a.scale, a.scale, a.scale};
    for (std::size_t c = 0; c < deviation.size(); ++c) {
      k.b[c] *= -deviation[c] * deviation[c] * total[n].gx[c] / count;
      k.c[c] *= -total[n].g[c] / count;
    }
    return k;
  }

  static void affine_gradient(const at::Tensor& g, const Affine& term, const Coefficients& k, bool statistics,
                              bool mask, const at::Tensor& addend, const at::Tensor& dx) {
    const loops::GradientOptions options{mask, addend};
    if (statistics) return loops::affine_gradient(g, term, k, options, dx);
    const Channels zero(k.a.size(), 0.0);
    loops::affine_gradient(g, term, {k.a, zero, zero}, options, dx);
  }

 private:
  static void normalise(const PointwiseTerm& term, const Moments& m, const ForwardArgs& args) {
    require(m.count > 1, "node '", term.name, "' normalises over one number a channel; use a larger --batch-size or ",
            "--image-size, or fewer --parts");
    const auto count = static_cast<double>(m.count);
    Channels variance(m.m2), deviation(m.m2);
    for (std::size_t c = 0; c < m.m2.size(); ++c) {
      deviation[c] = 1.0 / std::sqrt(m.m2[c] / count + term.norm->options.epsilon);
      variance[c] = m.m2[c] / (count - 1);
    }
    const at::Tensor mean = to_tensor(m.mean);
    const double weight = statistics_weight(term, args.pass.statistics);
    const auto& sums = term.parameters.gradients;  // weight, bias, running_mean, running_var, num_batches_tracked
    sums[2].add_(mean, weight);
    sums[3].add_(to_tensor(variance), weight);
    sums[4].add_(args.pass.statistics.share);
    args.saved.push_back(mean);
    args.saved.push_back(to_tensor(deviation));
    args.saved.push_back(to_tensor({count}));
  }
};

}  // namespace

double statistics_weight(const PointwiseTerm& term, const StatisticsShare& s) {
  const double momentum = term.norm->options.momentum;
  return s.share * momentum * std::pow(1 - momentum, static_cast<double>(s.micros - 1 - s.micro));
}

std::unique_ptr<Kernel> make_pointwise_kernel(PointwiseOptions options) {
  if (options.on_gpu) return make_gpu_pointwise_kernel(std::move(options));
  return std::make_unique<PointwiseFlow<HostPasses>>(std::move(options));
}

}  // namespace tessera
