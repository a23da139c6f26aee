#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>

#include "tessera/ops/gpu.h"
#include "tessera/ops/pointwise_flow.h"

namespace tessera {
namespace {

// On GPUs coefficients and sums stay in the GPU's memory: nothing here waits for it, unless ranks have to agree through
// the host.
struct GpuPasses {
  using Affine = gpu::Affine;
  using Moments = at::Tensor;       // count, means, Σ (x - mean)²
  using Sums = at::Tensor;          // [terms, 2, channels]
  using Coefficients = at::Tensor;  // [3, channels]
  static constexpr std::size_t saved_per_norm = 2;

  static Moments moments(const Slab& x) { return x.moments.defined() ? x.moments : gpu::moments(x.data); }

  static void normalise(const std::vector<const PointwiseTerm*>& terms, const std::vector<Moments>& mine,
                        const ForwardArgs& args) {
    at::Tensor all = mine.size() == 1 ? mine[0].unsqueeze(0) : at::stack(mine).view({1, -1});
    if (Communicator* group = args.pass.groups.norm) {
      const Meter::Timed timed(args.pass.groups.meter, Part::norms);
      const at::Tensor local = all.squeeze(0);
      all = at::empty({group->size(), local.size(0)}, local.options());
      group->all_gather(local, all).wait();
    } else {
      require(args.owned.volume() > 1, "node '", terms[0]->name,
              "' normalises over one number a channel; use a larger --batch-size or --image-size, or fewer --parts");
    }
    for (std::size_t i = 0; i < terms.size(); ++i) {
      const auto& [values, sums] = terms[i]->parameters;
      const gpu::Normed normed =
          gpu::finish_norm(all, static_cast<std::int64_t>(i) * mine[0].size(0),
                           {terms[i]->norm->options.epsilon, values[0], values[1], sums[2], sums[3], sums[4],
                            statistics_weight(*terms[i], args.pass.statistics), args.pass.statistics.share});
      args.saved.push_back(normed.coefficients);
      args.saved.push_back(normed.deviation);
    }
  }

  // As normalise() saves them, but for the deviation, which only backward asks for.
  static void use_running_statistics(const PointwiseTerm& term, Saved& saved) {
    const auto& values = term.parameters.values;  // weight, bias, running_mean, running_var, ...
    const at::Tensor deviation = values[3].to(at::kDouble).add(term.norm->options.epsilon).rsqrt_();
    saved.push_back(at::stack({values[2], deviation.mul_(values[0]).to(values[0].scalar_type()), values[1]}));
    saved.emplace_back();
  }

  static Affine affine(const PointwiseTerm& term, const at::Tensor& x, std::span<const at::Tensor> saved,
                       std::int64_t) {
    return {x, term.norm ? saved[0] : at::Tensor()};
  }
  static void affine_sum(const std::vector<Affine>& terms, bool relu, const at::Tensor& out) {
    gpu::affine_sum(terms, relu, out);
  }
  static at::Tensor sum_with_moments(const std::vector<Affine>& terms, bool relu, const at::Tensor& out) {
    return gpu::sum_with_moments(terms, relu, out);
  }
  static Sums gradient_sums(const std::vector<at::Tensor>& gradients, const at::Tensor& mask_output,
                            const Affine* mask_input, const std::vector<const Affine*>& terms, const at::Tensor& g) {
    return gpu::gradient_sums(gradients, {mask_output, mask_input}, terms, g);
  }
  static Sums summed(const Sums& sums, const KernelGroups& groups, const std::function<bool()>& meanwhile) {
    if (!groups.norm) return sums;
    at::Tensor all = sums.clone();
    finish_agreement(groups.norm->all_reduce(all), groups, meanwhile);
    return all;
  }
  static Coefficients finish(const PointwiseTerm& term, const Affine&, const Sums& own, const Sums& total,
                             std::size_t n, std::span<const at::Tensor> saved) {
    const auto i = static_cast<std::int64_t>(n);
    return gpu::finish_norm_gradient(own.select(0, i), total.select(0, i), {saved[0], saved[1]},
                                     term.parameters.gradients[0], term.parameters.gradients[1]);
  }
  static void affine_gradient(const at::Tensor& g, const Affine& term, const Coefficients& k, bool statistics,
                              bool mask, const at::Tensor& addend, const at::Tensor& dx) {
    gpu::affine_gradient(g, term, k, {mask, statistics, addend}, dx);
  }
};

}  // namespace

std::unique_ptr<Kernel> make_gpu_pointwise_kernel(PointwiseOptions options) {
  return std::make_unique<PointwiseFlow<GpuPasses>>(std::move(options));
}

}  // namespace tessera
