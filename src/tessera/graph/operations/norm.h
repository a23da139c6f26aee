// Norms: weight·(x - mean)/√(variance + epsilon) + bias, and who the mean and variance are of.
#pragma once

#include "tessera/graph/operation.h"

namespace tessera {

struct BatchNormOptions {
  double epsilon = 1e-5;
  double momentum = 0.1;  ///< weight of the new statistics in the running ones
  bool affine = true;     ///< weight and bias; without them only the statistics are parameters
  bool frozen = false;    ///< running statistics are used in training, too, and stay as they are
};

struct GroupNormOptions {
  std::int64_t groups = 1;  ///< 1: the whole sample together
  double epsilon = 1e-5;
  bool affine = true;
};

struct InstanceNormOptions {
  double epsilon = 1e-5;
  bool affine = false;  ///< as in torch
};

struct ScaleOptions {
  double start = 1;  ///< what the parameter begins with
  std::string suffix = "weight";
};

/// Batch norm (statistics of each channel over the micro), group and instance norm (of each sample), and a scale for
/// each channel, which is a norm without statistics.
class Norm final : public PointwiseOperation {
 public:
  explicit Norm(const BatchNormOptions& options);
  explicit Norm(const GroupNormOptions& options);
  explicit Norm(const InstanceNormOptions& options);
  explicit Norm(const ScaleOptions& options);

  std::string_view kind() const override { return kind_; }
  Shape output_shape(Shapes inputs) const override;
  /// In this order, as far as they are there: weight, bias, running_mean, running_var, num_batches_tracked.
  std::vector<ParameterSpec> parameters(Shapes inputs) const override;
  Cost cost(Shapes inputs, const Box& out) const override;
  Agreement agreement() const override;
  std::optional<PointwiseFormula> formula() const override { return norm; }

  const NormFormula norm;
  const ScaleOptions scale = {};

 private:
  const std::string_view kind_;
};

struct LayerNormOptions {
  double epsilon = 1e-6;
  bool affine = true;
};

/// Of the channels at each position. (Over a whole sample it is a group norm of one group.)
class LayerNorm final : public Operation {
 public:
  explicit LayerNorm(const LayerNormOptions& o) : options(o) {}
  std::string_view kind() const override { return "layer_norm"; }
  Shape output_shape(Shapes inputs) const override { return inputs[0]; }
  std::vector<ParameterSpec> parameters(Shapes inputs) const override;
  Cost cost(Shapes inputs, const Box& out) const override;
  Needs needs() const override { return {.inputs = true}; }
  bool repeats() const override { return true; }

  const LayerNormOptions options;
};

}  // namespace tessera
