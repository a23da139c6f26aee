// Operations whose output position depends on the same position of their inputs only.
#pragma once

#include "tessera/graph/operation.h"

namespace tessera {

class Relu final : public Operation {
 public:
  std::string_view kind() const override { return "relu"; }
  Shape output_shape(Shapes inputs) const override { return inputs[0]; }
  Cost cost(Shapes inputs, const Box& out) const override;
};

/// Sum of two values of one shape.
class Add final : public Operation {
 public:
  std::string_view kind() const override { return "add"; }
  Shape output_shape(Shapes inputs) const override;
  Cost cost(Shapes inputs, const Box& out) const override;
};

/// Joins values along channels.
class Concat final : public Operation {
 public:
  std::string_view kind() const override { return "concat"; }
  Shape output_shape(Shapes inputs) const override;
  Cost cost(Shapes inputs, const Box& out) const override;
};

/// Sets elements to zero with the given probability and scales the others by 1/(1-p). Which ones is a function of
/// (seed, step, name, sample, channel, position), so every plan drops the same ones.
class Dropout final : public Operation {
 public:
  explicit Dropout(double probability);
  std::string_view kind() const override { return "dropout"; }
  Shape output_shape(Shapes inputs) const override { return inputs[0]; }
  Cost cost(Shapes inputs, const Box& out) const override;

  const double probability;
};

struct BatchNormOptions {
  double epsilon = 1e-5;
  double momentum = 0.1;  ///< weight of the new statistics in the running ones
};

/// Normalises each channel by its mean and variance over all positions of the micro.
class BatchNorm final : public Operation {
 public:
  explicit BatchNorm(const BatchNormOptions& o) : options(o) {}
  std::string_view kind() const override { return "batch_norm"; }
  Shape output_shape(Shapes inputs) const override { return inputs[0]; }
  std::vector<ParameterSpec> parameters(Shapes inputs) const override;
  Cost cost(Shapes inputs, const Box& out) const override;

  const BatchNormOptions options;
};

}  // namespace tessera
