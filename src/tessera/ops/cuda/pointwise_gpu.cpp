#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "tessera/ops/cuda/gpu.h"
#include "tessera/ops/pointwise_flow.h"

namespace tessera {
namespace {

// A double for each unit and group, spread over the channels of the group.
at::Tensor to_channels(const at::Tensor& groups, std::int64_t channels) {
  return groups.size(1) == channels ? groups : groups.repeat_interleave(channels / groups.size(1), 1);
}
// The sum of a double for each unit and channel over the channels of a group.
at::Tensor to_groups(const at::Tensor& channels, std::int64_t groups) {
  return channels.size(1) == groups ? channels : channels.view({channels.size(0), groups, -1}).sum(2);
}

// On GPUs coefficients and sums stay in the GPU's memory: nothing here waits for it. Batch norm has kernels of its own;
// the statistics of samples and groups are a few numbers, and torch's.
struct GpuPasses {
  using Affine = gpu::Affine;
  using Derivative = gpu::Derivative;

  static at::Tensor zeros(at::IntArrayRef sizes, const at::TensorOptions& options) {
    return at::zeros(sizes, options.dtype(at::kDouble));
  }

  static at::Tensor moments(const Slab& x, const NormFormula& norm) {
    if (!norm.by_sample()) return x.moments.defined() ? x.moments : gpu::moments(x.data);
    const std::int64_t channels = x.data.size(1), groups = norm.groups > 0 ? norm.groups : channels;
    std::vector<at::Tensor> units;
    for (std::int64_t u = 0; u < x.data.size(0); ++u) units.push_back(gpu::moments(x.data.narrow(0, u, 1)));
    const at::Tensor all = at::stack(units), count = all.narrow(1, 0, 1), means = all.narrow(1, 1, channels);
    const double each = static_cast<double>(channels / groups);
    const at::Tensor mean = to_groups(means, groups) / each;
    const at::Tensor apart = (means - to_channels(mean, channels)).square_();
    const at::Tensor squares = to_groups(all.narrow(1, 1 + channels, channels) + apart * count, groups);
    return at::cat({count * each, mean, squares}, 1).flatten();
  }

  static Normed normalise(const PointwiseTerm& term, const at::Tensor& gathered, std::int64_t units,
                          const StatisticsShare& share) {
    const NormTensors p = tensors_of(term);
    if (p.mean_sum.defined() && p.weight.defined()) {
      // With several ranks the count is on the GPU, and nobody waits for it.
      const gpu::Normed normed = gpu::finish_norm(gathered, {term.norm->epsilon, p.weight, p.bias, p.mean_sum,
                                                             p.variance_sum, p.count_sum,
                                                             statistics_weight(*term.norm, share), share.share});
      return {normed.coefficients.unsqueeze(0), normed.deviation.unsqueeze(0)};
    }
    const at::Tensor all = gathered.reshape({gathered.size(0), units, -1});
    const std::int64_t groups = (all.size(2) - 1) / 2, channels = term.shape.channels;
    const at::Tensor count = all.narrow(2, 0, 1), total = count.sum(0);
    const at::Tensor mean = (all.narrow(2, 1, groups) * count).sum(0) / total;
    const at::Tensor apart = (all.narrow(2, 1, groups) - mean).square_() * count;
    const at::Tensor squares = (all.narrow(2, 1 + groups, groups) + apart).sum(0);
    const at::Tensor deviation = (squares / total).add_(term.norm->epsilon).rsqrt_();
    if (p.mean_sum.defined()) {
      const double weight = statistics_weight(*term.norm, share);
      p.mean_sum.add_(mean.view(-1), weight);
      p.variance_sum.add_((squares / (total - 1)).view(-1), weight);
      p.count_sum.add_(share.share);
    }
    return {coefficients(p, to_channels(mean, channels), to_channels(deviation, channels), term),
            at::cat({deviation, total}, 1)};
  }

  static Normed use_running(const PointwiseTerm& term) {
    const NormTensors p = tensors_of(term);
    const at::TensorOptions options = term.parameters.values[0].options().dtype(at::kDouble);
    const std::int64_t channels = term.shape.channels;
    at::Tensor mean = at::zeros({1, channels}, options), deviation = at::ones({1, channels}, options);
    if (p.mean.defined()) {
      mean = p.mean.to(at::kDouble).unsqueeze(0);
      deviation = p.variance.to(at::kDouble).add(term.norm->epsilon).rsqrt_().unsqueeze(0);
    }
    return {coefficients(p, mean, deviation, term), at::cat({deviation, at::ones({1, 1}, options)}, 1)};
  }

  static Affine affine(at::Tensor x, const Normed* normed, std::int64_t unit, std::int64_t) {
    return {std::move(x), normed ? normed->coefficients.select(0, unit) : at::Tensor()};
  }
  static Affine folded(Affine a, Combine combine, const at::Tensor& row, std::int64_t channels) {
    const at::Tensor b = row.expand({channels}).to(wide_dtype(row.scalar_type()));
    at::Tensor k = a.coefficients;
    if (!k.defined()) {
      k = at::zeros({3, channels}, b.options());
      k.select(0, 1).fill_(1);
    }
    a.coefficients = combine == Combine::product ? at::stack({k[0], k[1] * b, k[2] * b})
                                                 : at::stack({k[0], k[1], k[2] + b});
    return a;
  }

  static void evaluate(const std::vector<Affine>& terms, const loops::Formula& formula, const at::Tensor& out) {
    gpu::evaluate(terms, formula, out);
  }
  static at::Tensor evaluate_with_moments(const std::vector<Affine>& terms, const loops::Formula& formula,
                                          const at::Tensor& out) {
    return gpu::evaluate_with_moments(terms, formula, out);
  }
  static at::Tensor gradient_sums(const std::vector<at::Tensor>& gradients, const Derivative& derivative,
                                  const std::vector<const Affine*>& summed, const std::array<at::Tensor, 2>& g) {
    return gpu::gradient_sums(gradients, derivative, summed, g);
  }

  static at::Tensor finish(const PointwiseTerm& term, const Normed& normed, const at::Tensor& own,
                           const at::Tensor& total, const at::Tensor& factor) {
    if (!term.norm) {
      at::Tensor k = at::zeros({factor.size(0), 3, factor.size(1)}, factor.options());
      k.select(1, 0).copy_(factor);
      return narrow(k, term);
    }
    const NormTensors p = tensors_of(term);
    if (p.mean_sum.defined() && p.weight.defined() && !factor.defined())
      return gpu::finish_norm_gradient(own[0], total[0], {normed.coefficients[0], normed.deviation[0]},
                                       p.weight_gradient, p.bias_gradient)
          .unsqueeze(0);
    const std::int64_t channels = own.size(2), groups = normed.deviation.size(1) - 1;
    const at::Tensor deviation = normed.deviation.narrow(1, 0, groups), inverse = to_channels(deviation, channels);
    const at::Tensor weight =
        p.weight.defined() ? p.weight.to(at::kDouble).unsqueeze(0) : at::ones({1, channels}, own.options());
    if (p.weight_gradient.defined())
      p.weight_gradient.add_((own.select(1, 1) * inverse).sum(0).view(p.weight_gradient.sizes()));
    if (p.bias_gradient.defined()) p.bias_gradient.add_(own.select(1, 0).sum(0));
    at::Tensor a = inverse * weight, b = at::zeros_like(a), c = b;
    if (total.defined()) {
      const at::Tensor count = normed.deviation.narrow(1, groups, 1);
      b = to_channels(to_groups(total.select(1, 1) * weight, groups) * deviation.pow(3) / -count, channels);
      c = to_channels(to_groups(total.select(1, 0) * weight, groups) * deviation / -count, channels);
    }
    if (factor.defined()) {
      a = a * factor;
      b = b.expand_as(a);
      c = c.expand_as(a);
    }
    return narrow(at::stack({a, b, c}, 1), term);
  }

  static void gradient(const at::Tensor& g, const Affine& term, const at::Tensor& k, std::int64_t unit, bool statistics,
                       bool mask, const at::Tensor& addend, const at::Tensor& dx) {
    gpu::affine_gradient(g, term, k.select(0, unit), {mask, statistics, addend}, dx);
  }

 private:
  // Coefficients are in the type that the passes compute in: double for doubles, float for all others.
  static at::Tensor narrow(const at::Tensor& k, const PointwiseTerm& term) { return k.to(term.computed).contiguous(); }

  static at::Tensor coefficients(const NormTensors& p, const at::Tensor& mean, const at::Tensor& deviation,
                                 const PointwiseTerm& term) {
    const at::Tensor scale = p.weight.defined() ? deviation * p.weight : deviation;
    const at::Tensor shift = p.bias.defined() ? p.bias.to(at::kDouble).expand_as(mean) : at::zeros_like(mean);
    return narrow(at::stack({mean, scale, shift}, 1), term);
  }
};

}  // namespace

std::unique_ptr<Kernel> make_gpu_pointwise_kernel(PointwiseOptions options) {
  return std::make_unique<PointwiseFlow<GpuPasses>>(std::move(options));
}

}  // namespace tessera
