#pragma once

#include "tessera/graph/operations/windowed.h"

namespace tessera {

struct PoolOptions {
  Pair kernel = 1;
  std::optional<Pair> stride;  ///< as `kernel` when not given
  Pair pad = 0;
  std::optional<Pair> pad_end;    ///< as `pad` when not given
  bool count_include_pad = true;  ///< average only: whether padding counts in the divisor
  bool ceil_mode = false;         ///< a last window may hang over the end
};

/// Padding never wins: it stands for minus infinity. Of equal values the first in row order takes the gradient.
class MaxPool final : public Operation {
 public:
  explicit MaxPool(const PoolOptions& options);
  std::string_view kind() const override { return "max_pool"; }
  Shape output_shape(Shapes inputs) const override { return windows.apply(inputs[0], inputs[0].channels); }
  Box input_box(const Box& out, std::size_t i, Shapes inputs) const override { return windows.input_of(out); }
  Box owned_output(const Box& in, Shapes inputs) const override { return windows.owned_outputs(in, inputs[0]); }
  Cost cost(Shapes inputs, const Box& out) const override;
  /// Which pixel of the window won, a byte each.
  Workspace workspace(Shapes inputs, const Box& out, std::int64_t element_bytes) const override {
    return {.saved = static_cast<double>(out.volume() * inputs[0].channels), .writes_in_place = true};
  }
  Needs needs() const override { return {}; }
  bool repeats() const override { return true; }

  const Windows windows;
};

class AvgPool final : public Operation {
 public:
  explicit AvgPool(const PoolOptions& options);
  std::string_view kind() const override { return "avg_pool"; }
  Shape output_shape(Shapes inputs) const override { return windows.apply(inputs[0], inputs[0].channels); }
  Box input_box(const Box& out, std::size_t i, Shapes inputs) const override { return windows.input_of(out); }
  Box owned_output(const Box& in, Shapes inputs) const override { return windows.owned_outputs(in, inputs[0]); }
  Cost cost(Shapes inputs, const Box& out) const override;
  Workspace workspace(Shapes inputs, const Box& out, std::int64_t element_bytes) const override {
    return {.writes_in_place = true};
  }
  Needs needs() const override { return {}; }
  bool repeats() const override { return true; }

  const Windows windows;
  const bool count_include_pad;
};

/// The mean over all positions of a sample.
class GlobalAvgPool final : public Operation {
 public:
  std::string_view kind() const override { return "global_avg_pool"; }
  Shape output_shape(Shapes inputs) const override { return {inputs[0].channels, 1, 1, 1}; }
  Box input_box(const Box& out, std::size_t i, Shapes inputs) const override { return inputs[0].box(out.batch()); }
  Box owned_output(const Box& in, Shapes inputs) const override { return first_pixel_owner(in); }
  bool reduces_positions() const override { return true; }
  Needs needs() const override { return {}; }
  bool repeats() const override { return false; }
  Cost cost(Shapes inputs, const Box& out) const override;
};

}  // namespace tessera
