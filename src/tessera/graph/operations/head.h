// The end of a network: flatten, linear, loss.
#pragma once

#include "tessera/graph/operation.h"

namespace tessera {

/// Channels, rows and columns of a sample in one long channel, in torch's order.
class Flatten final : public Operation {
 public:
  std::string_view kind() const override { return "flatten"; }
  Shape output_shape(Shapes inputs) const override { return {inputs[0].elements(), 1, 1, 1}; }
  Box input_box(const Box& out, std::size_t i, Shapes inputs) const override { return inputs[0].box(out.batch()); }
  Box owned_output(const Box& in, Shapes inputs) const override { return first_pixel_owner(in); }
  Cost cost(Shapes inputs, const Box& out) const override { return {}; }
};

struct LinearOptions {
  std::int64_t out = 0;
  bool bias = true;
};

class Linear final : public Operation {
 public:
  explicit Linear(const LinearOptions& options);
  std::string_view kind() const override { return "linear"; }
  Shape output_shape(Shapes inputs) const override;
  std::vector<ParameterSpec> parameters(Shapes inputs) const override;
  Cost cost(Shapes inputs, const Box& out) const override;

  const LinearOptions options;
};

/// Softmax and cross-entropy on logits; the output is one loss a sample. The loss of a batch is the mean of them.
class CrossEntropy final : public Operation {
 public:
  std::string_view kind() const override { return "cross_entropy"; }
  Shape output_shape(Shapes inputs) const override;
  Cost cost(Shapes inputs, const Box& out) const override;
};

}  // namespace tessera
