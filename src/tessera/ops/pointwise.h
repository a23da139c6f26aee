// Batch norm, add and ReLU, fused: one step computes act( Σ affine(x_t) ), where a term is a value as it is or a
// normalised one. Chains of these operations are bound by memory traffic, so each value is read as few times as can be:
//
//   forward     x -> moments        x (and the other terms) -> out (and its moments)
//   backward    dy, x -> sums       dy, x -> dx
//
// The output is cheap to make again from the terms, so it need not be kept for backward.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tessera/ops/kernel.h"

namespace tessera {

struct PointwiseTerm {
  const BatchNorm* norm = nullptr;  ///< null: the value as it is
  NodeParameters parameters = {};   ///< of the norm
  std::string name = {};            ///< of the norm's node, for messages
};

struct PointwiseOptions {
  std::vector<PointwiseTerm> terms;  ///< one an input, at most pointwise_max_terms
  bool relu = false;
  /// Where backward finds out which outputs ReLU has cut: in the output, or (one term only) in the input.
  bool mask_from_output = false;
  std::int64_t channels = 0;
  bool on_gpu = false;
  /// Somebody normalises the output: its moments are taken while it is written. GPUs only.
  bool moments = false;
};

inline constexpr std::size_t pointwise_max_terms = 2;

std::unique_ptr<Kernel> make_pointwise_kernel(PointwiseOptions options);
std::unique_ptr<Kernel> make_gpu_pointwise_kernel(PointwiseOptions options);

/// What a micro's statistics weigh in the running ones at the end of the step, on this rank.
double statistics_weight(const PointwiseTerm& term, const StatisticsShare& share);

}  // namespace tessera
