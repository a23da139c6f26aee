// A sliding window along one axis: what convolutions and pools do to intervals.
#pragma once

#include "tessera/geometry/box.h"

namespace tessera {

/// Output o looks at inputs o*stride - pad_begin + k*dilation for k in [0, kernel). Padding may be negative (a crop)
/// and differ between the two ends.
struct Window {
  std::int64_t kernel = 1;
  std::int64_t stride = 1;
  std::int64_t pad_begin = 0;
  std::int64_t pad_end = 0;
  std::int64_t dilation = 1;
  /// Whether a last window that hangs over the end counts, as long as it begins before it ("ceil mode").
  bool hangs_over = false;

  std::int64_t extent() const { return (kernel - 1) * dilation + 1; }
  /// Number of outputs; zero or less when the input is too small.
  std::int64_t output_size(std::int64_t input) const {
    const std::int64_t room = input + pad_begin + pad_end - extent();
    if (room < 0) return 0;
    if (!hangs_over) return room / stride + 1;
    const std::int64_t outputs = (room + stride - 1) / stride + 1;
    return (outputs - 1) * stride >= input + pad_begin ? outputs - 1 : outputs;
  }
  /// The inputs that `out` needs; may reach outside the image on both ends.
  Interval input_of(const Interval& out) const {
    if (out.empty()) return {};
    return {out.begin * stride - pad_begin, (out.end - 1) * stride - pad_begin + extent()};
  }
  /// The outputs that belong to the owner of `in`: output o goes with its anchor, input o*stride, clamped into the
  /// image. So a partition of the input gives a partition of the output, whatever its cuts are.
  Interval owned_outputs(const Interval& in, std::int64_t input_size) const {
    const std::int64_t outputs = output_size(input_size);
    if (in.empty()) return {};
    const auto first_at_or_after = [&](std::int64_t i) { return std::min(outputs, (i + stride - 1) / stride); };
    return {first_at_or_after(in.begin), in.end == input_size ? outputs : first_at_or_after(in.end)};
  }
  friend bool operator==(const Window&, const Window&) = default;
};

}  // namespace tessera
