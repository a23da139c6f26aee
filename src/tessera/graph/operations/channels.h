// Operations that move channels about and leave positions where they are.
#pragma once

#include "tessera/graph/operation.h"

namespace tessera {

/// Joins values along channels.
class Concat final : public Operation {
 public:
  std::string_view kind() const override { return "concat"; }
  Shape output_shape(Shapes inputs) const override;
  Cost cost(Shapes inputs, const Box& out) const override;
  Needs needs() const override { return {}; }
  bool repeats() const override { return true; }
};

}  // namespace tessera
