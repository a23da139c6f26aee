#include "tessera/ops/pointwise.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <cmath>

#include "tessera/ops/cpu/pointwise_loops.h"
#include "tessera/ops/families.h"
#include "tessera/ops/pointwise_flow.h"

namespace tessera {
namespace {

using loops::Channels;

// Numbers of a tensor of doubles; null where it is undefined.
const double* numbers(const at::Tensor& t) { return t.defined() ? t.data_ptr<double>() : nullptr; }

Channels to_channels(const at::Tensor& t) {
  const at::Tensor d = t.to(at::kDouble).contiguous();
  return {d.data_ptr<double>(), d.data_ptr<double>() + d.numel()};
}
Channels or_constant(const at::Tensor& t, std::size_t channels, double constant) {
  return t.defined() ? to_channels(t) : Channels(channels, constant);
}

at::Tensor doubles(at::IntArrayRef sizes) { return at::empty(sizes, at::kDouble); }

// Adds to a parameter's sum, whatever its type and sizes are.
void add_to(const at::Tensor& sum, const Channels& values, double weight = 1) {
  if (!sum.defined()) return;
  at::Tensor t = doubles({static_cast<std::int64_t>(values.size())});
  std::copy(values.begin(), values.end(), t.data_ptr<double>());
  sum.add_(t.view(sum.sizes()), weight);
}

// On CPUs coefficients and sums are doubles in plain memory.
struct HostPasses {
  using Affine = loops::Affine;
  using Derivative = loops::Derivative;

  static at::Tensor zeros(at::IntArrayRef sizes, const at::TensorOptions&) { return at::zeros(sizes, at::kDouble); }

  // Each channel's, and of these each group's: with c channels of n numbers, means m and squares q around them, the
  // group's mean is Σ m / c and its squares are Σ q + n (m - mean)².
  static at::Tensor moments(const Slab& x, const NormFormula& norm) {
    const std::int64_t units = norm.by_sample() ? x.data.size(0) : 1, channels = x.data.size(1);
    const std::int64_t groups = norm.groups > 0 ? norm.groups : channels, each = channels / groups;
    at::Tensor out = doubles({units * (1 + 2 * groups)});
    double* to = out.data_ptr<double>();
    for (std::int64_t u = 0; u < units; ++u, to += 1 + 2 * groups) {
      const loops::Moments m = loops::moments(norm.by_sample() ? x.data.narrow(0, u, 1) : x.data);
      const auto count = static_cast<double>(m.count);
      to[0] = count * static_cast<double>(each);
      for (std::int64_t g = 0; g < groups; ++g) {
        const auto first = static_cast<std::size_t>(g * each), end = first + static_cast<std::size_t>(each);
        double mean = 0, squares = 0;
        for (std::size_t c = first; c < end; ++c) mean += m.mean[c] / static_cast<double>(each);
        for (std::size_t c = first; c < end; ++c) squares += m.m2[c] + count * (m.mean[c] - mean) * (m.mean[c] - mean);
        to[1 + g] = mean;
        to[1 + groups + g] = squares;
      }
    }
    return out;
  }

  static Normed normalise(const PointwiseTerm& term, const at::Tensor& gathered, std::int64_t units,
                          const StatisticsShare& share) {
    const NormTensors p = tensors_of(term);
    const std::int64_t ranks = gathered.size(0), length = gathered.size(1) / units, groups = (length - 1) / 2;
    const auto channels = static_cast<std::size_t>(term.shape.channels),
               each = channels / static_cast<std::size_t>(groups);
    const Channels weight = or_constant(p.weight, channels, 1), bias = or_constant(p.bias, channels, 0);
    Normed out{doubles({units, 3, term.shape.channels}), doubles({units, groups + 1})};
    for (std::int64_t u = 0; u < units; ++u) {
      // The same bits on every rank: one after the other, in the order of the ranks.
      Channels mean(static_cast<std::size_t>(groups), 0.0), m2 = mean;
      double count = 0;
      for (std::int64_t r = 0; r < ranks; ++r) {
        const double* from = numbers(gathered) + r * gathered.stride(0) + u * length;
        if (from[0] == 0) continue;
        const double total = count + from[0];
        for (std::size_t g = 0; g < mean.size(); ++g) {
          const double delta = from[1 + g] - mean[g];
          m2[g] += from[1 + mean.size() + g] + delta * delta * count * from[0] / total;
          mean[g] += delta * from[0] / total;
        }
        count = total;
      }
      require_numbers(static_cast<std::int64_t>(count), term);
      double* const deviation = out.deviation.data_ptr<double>() + u * (groups + 1);
      for (std::size_t g = 0; g < mean.size(); ++g) deviation[g] = 1.0 / std::sqrt(m2[g] / count + term.norm->epsilon);
      deviation[groups] = count;
      put_coefficients(out.coefficients[u], mean, deviation, each, weight, bias);
      if (!p.mean_sum.defined()) continue;
      const double share_weight = statistics_weight(*term.norm, share);
      add_to(p.mean_sum, mean, share_weight);
      for (double& v : m2) v /= count - 1;
      add_to(p.variance_sum, m2, share_weight);
      p.count_sum.add_(share.share);
    }
    return out;
  }

  static Normed use_running(const PointwiseTerm& term) {
    const NormTensors p = tensors_of(term);
    const auto channels = static_cast<std::size_t>(term.shape.channels);
    Normed out{doubles({1, 3, term.shape.channels}), doubles({1, term.shape.channels + 1})};
    const Channels mean = or_constant(p.mean, channels, 0), variance = or_constant(p.variance, channels, 1);
    double* const deviation = out.deviation.data_ptr<double>();
    for (std::size_t c = 0; c < channels; ++c)
      deviation[c] = p.variance.defined() ? 1.0 / std::sqrt(variance[c] + term.norm->epsilon) : 1;
    deviation[channels] = 1;
    put_coefficients(out.coefficients[0], mean, deviation, 1, or_constant(p.weight, channels, 1),
                     or_constant(p.bias, channels, 0));
    return out;
  }

  static Affine affine(at::Tensor x, const Normed* normed, std::int64_t unit, std::int64_t channel_count) {
    const auto channels = static_cast<std::size_t>(channel_count);
    if (!normed) return {std::move(x), Channels(channels, 0.0), Channels(channels, 1.0), Channels(channels, 0.0)};
    const double* k = normed->coefficients.data_ptr<double>() + unit * 3 * channel_count;
    const auto row = [&](std::int64_t i) { return Channels(k + i * channel_count, k + (i + 1) * channel_count); };
    return {std::move(x), row(0), row(1), row(2)};
  }

  static Affine folded(Affine a, Combine combine, const at::Tensor& row, std::int64_t channels) {
    const Channels factors = to_channels(row);
    for (std::size_t c = 0; c < static_cast<std::size_t>(channels); ++c) {
      const double b = factors[factors.size() == 1 ? 0 : c];
      if (combine == Combine::product) {
        a.scale[c] *= b;
        a.shift[c] *= b;
      } else {
        a.shift[c] += b;
      }
    }
    return a;
  }

  static void evaluate(const std::vector<Affine>& terms, const loops::Formula& formula, const at::Tensor& out) {
    loops::evaluate(terms, formula, out);
  }
  static at::Tensor evaluate_with_moments(const std::vector<Affine>& terms, const loops::Formula& formula,
                                          const at::Tensor& out) {
    evaluate(terms, formula, out);
    return {};
  }

  static at::Tensor gradient_sums(const std::vector<at::Tensor>& gradients, const Derivative& derivative,
                                  const std::vector<const Affine*>& summed, const std::array<at::Tensor, 2>& g) {
    const auto sums = loops::gradient_sums(gradients, derivative, summed, g);
    const std::int64_t channels = gradients[0].size(1);
    at::Tensor out = doubles({static_cast<std::int64_t>(sums.size()), 2, channels});
    double* to = out.data_ptr<double>();
    for (const auto& s : sums) {
      to = std::copy(s.g.begin(), s.g.end(), to);
      to = std::copy(s.gx.begin(), s.gx.end(), to);
    }
    return out;
  }

  // dx = a·g + b·(x - mean) + c, from the sums over all that was normalised together.
  static at::Tensor finish(const PointwiseTerm& term, const Normed& normed, const at::Tensor& own_sums,
                           const at::Tensor& total_sums, const at::Tensor& factor) {
    const at::Tensor own = own_sums.contiguous(), total = total_sums.defined() ? total_sums.contiguous() : total_sums;
    const auto channels = static_cast<std::size_t>(own.size(2));
    const std::int64_t own_units = term.norm ? normed.coefficients.size(0) : 1;
    const std::int64_t units = factor.defined() ? factor.size(0) : own_units;
    at::Tensor k = at::zeros({units, 3, own.size(2)}, at::kDouble);
    NormTensors p;
    Channels weight_gradient(channels, 0.0), bias_gradient(channels, 0.0), weight;
    if (term.norm) {
      p = tensors_of(term);
      weight = or_constant(p.weight, channels, 1);
    }
    for (std::int64_t u = 0; u < units; ++u) {
      double* const a = k.data_ptr<double>() + u * 3 * own.size(2);
      double *const b = a + channels, *const c = b + channels;
      if (!term.norm) {
        std::fill_n(a, channels, 1.0);
      } else {
        const std::int64_t from = own_units > 1 ? u : 0;
        const double* const s = own.data_ptr<double>() + from * own.stride(0);
        const double* const t = total.defined() ? total.data_ptr<double>() + from * total.stride(0) : nullptr;
        const std::int64_t groups = normed.deviation.size(1) - 1;
        const double* const deviation = normed.deviation.data_ptr<double>() + from * (groups + 1);
        const std::size_t each = channels / static_cast<std::size_t>(groups);
        for (std::size_t g = 0; g < static_cast<std::size_t>(groups); ++g) {
          const double inverse = deviation[g], count = deviation[groups];
          double sum = 0, sum_x = 0;
          for (std::size_t i = g * each; i < (g + 1) * each; ++i) {
            a[i] = weight[i] * inverse;
            if (own_units > 1 || u == 0) {
              // This rank's share; the gradient sync adds those of the others.
              weight_gradient[i] += s[channels + i] * inverse;
              bias_gradient[i] += s[i];
            }
            if (t) sum += weight[i] * t[i];
            if (t) sum_x += weight[i] * t[channels + i];
          }
          for (std::size_t i = g * each; t && i < (g + 1) * each; ++i) {
            b[i] = -inverse * inverse * inverse * sum_x / count;
            c[i] = -inverse * sum / count;
          }
        }
      }
      if (factor.defined())
        for (std::size_t i = 0; i < channels; ++i) a[i] *= factor[u].data_ptr<double>()[i];
    }
    add_to(p.weight_gradient, weight_gradient);
    add_to(p.bias_gradient, bias_gradient);
    return k;
  }

  static void gradient(const at::Tensor& g, const Affine& term, const at::Tensor& k, std::int64_t unit, bool statistics,
                       bool mask, const at::Tensor& addend, const at::Tensor& dx) {
    const std::int64_t channels = k.size(2);
    const double* from = k.data_ptr<double>() + unit * 3 * channels;
    const auto row = [&](std::int64_t i) { return Channels(from + i * channels, from + (i + 1) * channels); };
    const Channels zero(static_cast<std::size_t>(channels), 0.0);
    loops::affine_gradient(g, term, {row(0), statistics ? row(1) : zero, statistics ? row(2) : zero}, {mask, addend},
                           dx);
  }

 private:
  static void put_coefficients(const at::Tensor& unit, const Channels& mean, const double* deviation, std::size_t each,
                               const Channels& weight, const Channels& bias) {
    double* to = unit.data_ptr<double>();
    const std::size_t channels = weight.size();
    for (std::size_t c = 0; c < channels; ++c) {
      to[c] = mean[c / each];
      to[channels + c] = weight[c] * deviation[c / each];
      to[2 * channels + c] = bias[c];
    }
  }
};

}  // namespace

NormTensors tensors_of(const PointwiseTerm& term) {
  const auto& [values, sums] = term.parameters;
  NormTensors out;
  std::size_t at = 0;
  if (term.norm->statistics == StatisticsOf::nothing || term.norm->affine) {
    out.weight = values[at].flatten();
    out.weight_gradient = sums[at++];
  }
  if (term.norm->statistics != StatisticsOf::nothing && term.norm->affine) {
    out.bias = values[at];
    out.bias_gradient = sums[at++];
  }
  if (!term.norm->has_running()) return out;
  out.mean = values[at];
  out.variance = values[at + 1];
  if (!term.norm->live()) return out;
  out.mean_sum = sums[at];
  out.variance_sum = sums[at + 1];
  out.count_sum = sums[at + 2];
  return out;
}

double statistics_weight(const NormFormula& norm, const StatisticsShare& s) {
  return s.share * norm.momentum * std::pow(1 - norm.momentum, static_cast<double>(s.micros - 1 - s.micro));
}

void require_numbers(std::int64_t count, const PointwiseTerm& term) {
  require(count > 1, "node '", term.name, "' normalises over one number per ",
          term.norm->by_sample() ? "sample" : "channel",
          "; use a larger --batch-size or --image-size, or fewer --parts");
}

PointwiseOptions pointwise_options(const KernelRequest& r) {
  const Pointwise& p = *r.step.pointwise;
  PointwiseOptions options{.terms = {},
                           .combine = p.combine,
                           .activation = p.activation,
                           .by_output = p.by_output,
                           .shape = r.node().shape,
                           .moments = r.step.moments};
  for (std::size_t i = 0; i < p.terms.size(); ++i) {
    PointwiseTerm term{.shape = r.graph.shape({r.step.inputs[i]}),
                       .computed = wide_dtype(r.activations.dtype().toScalarType())};
    if (p.terms[i].norm >= 0) {
      const Node& node = r.graph.node({p.terms[i].norm});
      term.norm = std::get<NormFormula>(*node.op->formula());
      term.parameters = r.parameters(node);
      term.name = node.name;
    }
    options.terms.push_back(std::move(term));
  }
  return options;
}

std::unique_ptr<Kernel> make_pointwise_kernel(PointwiseOptions options) {
  return std::make_unique<PointwiseFlow<HostPasses>>(std::move(options));
}

void add_pointwise_kernels(Kernels& kernels) {
  kernels.add(pointwise_kind, {"cuda", [](const KernelRequest& r) { return r.on_gpu(); },
                               [](const KernelRequest& r) { return make_gpu_pointwise_kernel(pointwise_options(r)); }});
  kernels.add(pointwise_kind, [](const KernelRequest& r) { return make_pointwise_kernel(pointwise_options(r)); });
}

}  // namespace tessera
