// Operations whose output position depends on the same position of their inputs only.
#pragma once

#include "tessera/graph/operation.h"

namespace tessera {

/// Any of the table in graph/activations.h.
class Activate final : public PointwiseOperation {
 public:
  explicit Activate(const Activation& which);
  std::string_view kind() const override { return to_string(activation.kind); }
  Shape output_shape(Shapes inputs) const override { return inputs[0]; }
  Cost cost(Shapes inputs, const Box& out) const override;
  std::optional<PointwiseFormula> formula() const override { return activation; }

  const Activation activation;
};

/// A sum or product of two values. The second has the first's shape, or one channel, or one position, or one of both:
/// then it stands for all of them.
class Arithmetic final : public PointwiseOperation {
 public:
  explicit Arithmetic(Combine what) : combine(what) {}
  std::string_view kind() const override { return combine == Combine::sum ? "add" : "multiply"; }
  Shape output_shape(Shapes inputs) const override;
  Box input_box(const Box& out, std::size_t i, Shapes inputs) const override;
  Cost cost(Shapes inputs, const Box& out) const override;
  std::optional<PointwiseFormula> formula() const override { return combine; }

  const Combine combine;
};

/// x, or below zero a parameter times x: one for all channels, or one for each.
class PRelu final : public Operation {
 public:
  explicit PRelu(bool one_for_each_channel) : by_channel(one_for_each_channel) {}
  std::string_view kind() const override { return "prelu"; }
  Shape output_shape(Shapes inputs) const override { return inputs[0]; }
  std::vector<ParameterSpec> parameters(Shapes inputs) const override;
  Cost cost(Shapes inputs, const Box& out) const override;
  Needs needs() const override { return {.inputs = true}; }
  bool repeats() const override { return true; }

  const bool by_channel;
};

/// What is dropped at once.
enum class DropoutOf { elements, channels, samples };

/// Sets elements to zero with the given probability and scales the others by 1/(1-p). Which ones is a function of
/// (seed, step, name, sample, channel, position), so every plan drops the same ones. A channel, or a sample, is dropped
/// or kept as a whole (the latter is the stochastic depth of residual branches).
class Dropout final : public Operation {
 public:
  explicit Dropout(double probability, DropoutOf what = DropoutOf::elements);
  std::string_view kind() const override { return "dropout"; }
  Shape output_shape(Shapes inputs) const override { return inputs[0]; }
  Cost cost(Shapes inputs, const Box& out) const override;
  Needs needs() const override { return {}; }  // the mask is made again, not kept
  bool repeats() const override { return true; }
  std::optional<OperationPtr> before_mean() const override { return nullptr; }

  const double probability;
  const DropoutOf of;
};

}  // namespace tessera
