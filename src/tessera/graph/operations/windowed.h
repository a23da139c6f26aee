// What convolutions and pools share: a window along height and one along width.
#pragma once

#include <optional>

#include "tessera/geometry/window.h"
#include "tessera/graph/operation.h"

namespace tessera {

/// A number for height and one for width; a single number stands for both.
struct Pair {
  std::int64_t height = 0;
  std::int64_t width = 0;
  constexpr Pair() = default;
  constexpr Pair(std::int64_t both) : height(both), width(both) {}  // NOLINT(google-explicit-constructor)
  constexpr Pair(std::int64_t h, std::int64_t w) : height(h), width(w) {}
  friend bool operator==(const Pair&, const Pair&) = default;
};

struct Windows {
  Window height;
  Window width;

  Windows(Pair kernel, Pair stride, Pair pad, Pair pad_end, Pair dilation);
  /// Throws UsageError when the window does not fit into the padded input.
  Shape apply(const Shape& in, std::int64_t out_channels) const;
  Box input_of(const Box& out) const;
  /// What of the image these outputs look at.
  Box seen_by(const Box& out, const Shape& input) const { return intersect(input_of(out), input.box(out.batch())); }
  Box owned_outputs(const Box& in, const Shape& input) const;
};

}  // namespace tessera
