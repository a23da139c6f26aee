#pragma once

#include "tessera/graph/operations/resample.h"
#include "tessera/graph/operations/windowed.h"

namespace tessera {

struct ConvOptions {
  std::int64_t out = 0;  ///< output channels
  Pair kernel = 1;
  Pair stride = 1;
  Pair pad = 0;                 ///< before the first row and column; negative crops
  std::optional<Pair> pad_end;  ///< after the last ones; as `pad` when not given
  Pair dilation = 1;
  std::int64_t groups = 1;
  bool bias = false;
  PadMode pad_mode = PadMode::zeros;  ///< other than zeros: the graph puts a Pad node before it
  /// Unset: torch's default, uniform in ±1/√fan-in. Set: normal with this gain over √fan-out (He et al. use √2).
  std::optional<double> fan_out_gain;
};

class Conv final : public Operation {
 public:
  explicit Conv(const ConvOptions& options);
  std::string_view kind() const override { return "conv"; }
  Shape output_shape(Shapes inputs) const override;
  std::vector<ParameterSpec> parameters(Shapes inputs) const override;
  Box input_box(const Box& out, std::size_t i, Shapes inputs) const override { return windows.input_of(out); }
  Box owned_output(const Box& in, Shapes inputs) const override { return windows.owned_outputs(in, inputs[0]); }
  bool pads_with_zeros() const override { return true; }
  Cost cost(Shapes inputs, const Box& out) const override;
  Workspace workspace(Shapes inputs, const Box& out, std::int64_t element_bytes) const override;
  Needs needs() const override { return {.inputs = true}; }
  bool repeats() const override { return true; }
  std::optional<OperationPtr> before_mean() const override;

  const ConvOptions options;
  const Windows windows;
};

}  // namespace tessera
