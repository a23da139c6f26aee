// Norms, sums, products and activations, fused: one step computes act(a ∘ b), where a term is a value as it is or a
// normalised one, and ∘ a sum or a product. Chains of these operations are bound by memory traffic, so each value is
// read as few times as can be:
//
//   forward     x -> moments    agree    x (and the other term) -> out (and its moments)
//   backward    dy, x -> sums   agree    dy, x -> dx
//
// The output is cheap to make again from the terms, so it need not be kept for backward.
//
// A term of one position stands for all positions: it is folded into the other term's coefficients, sample by sample. A
// term of one channel stands for all channels: it is spread out first.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/ops/kernel.h"

namespace tessera {

struct PointwiseTerm {
  std::optional<NormFormula> norm;       ///< unset: the value as it is
  NodeParameters parameters = {};        ///< of the norm
  std::string name = {};                 ///< of the norm's node, for messages
  Shape shape = {};                      ///< of the value
  at::ScalarType computed = at::kFloat;  ///< the type that the passes compute in
};

struct PointwiseOptions {
  std::vector<PointwiseTerm> terms;  ///< one per input, at most two
  Combine combine = Combine::sum;
  std::optional<Activation> activation;
  bool by_output = false;  ///< where backward reads the activation's derivative: in the output, or in the inputs
  Shape shape = {};        ///< of the output
  bool moments = false;    ///< somebody normalises the output: its moments may be taken while it is written
};

PointwiseOptions pointwise_options(const KernelRequest& request);

std::unique_ptr<Kernel> make_pointwise_kernel(PointwiseOptions options);
std::unique_ptr<Kernel> make_gpu_pointwise_kernel(PointwiseOptions options);

/// The parameters of a norm, by their names: undefined where it has none.
struct NormTensors {
  at::Tensor weight, bias;                    ///< values
  at::Tensor weight_gradient, bias_gradient;  ///< added to
  at::Tensor mean, variance;                  ///< running statistics
  at::Tensor mean_sum, variance_sum, count_sum;
};
NormTensors tensors_of(const PointwiseTerm& term);

/// What a micro's statistics weigh in the running ones at the end of the step, on this rank.
double statistics_weight(const NormFormula& norm, const StatisticsShare& share);

/// Throws UsageError: nothing can be normalised over one number.
void require_numbers(std::int64_t count, const PointwiseTerm& term);

/// What a norm leaves of forward: of each unit, which is all samples together or one sample.
struct Normed {
  at::Tensor coefficients;  ///< [units, 3, channels]: mean, scale, shift
  at::Tensor deviation;     ///< [units, groups + 1] doubles: 1/deviation of each group, and the count
};

}  // namespace tessera
