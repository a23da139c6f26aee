// What every operation knows about itself without touching a tensor: its shape, region and cost rules and its
// parameters. The kernels (forward, backward) stand in ops/, in a file of the same name.
#pragma once

#include <cstdint>
#include <memory>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/geometry/box.h"

namespace tessera {

/// One sample of a value: channels × depth × height × width.
struct Shape {
  std::int64_t channels = 1;
  std::int64_t height = 1;
  std::int64_t width = 1;
  std::int64_t depth = 1;

  std::int64_t positions() const { return depth * height * width; }
  std::int64_t elements() const { return channels * positions(); }
  /// The whole value for these samples.
  Box box(Interval batch) const { return Box{{batch, Interval{0, depth}, Interval{0, height}, Interval{0, width}}}; }
  friend bool operator==(const Shape&, const Shape&) = default;
  friend std::ostream& operator<<(std::ostream& out, const Shape& s) {
    return out << s.channels << 'x' << s.height << 'x' << s.width;
  }
};

/// How a parameter begins. Values depend on the parameter's full name and the seed, never on ranks.
struct Initializer {
  enum class Kind { constant, uniform, normal };
  Kind kind = Kind::constant;
  double scale = 0;  ///< the constant, half the width of the uniform interval around 0, or the standard deviation
};

struct ParameterSpec {
  std::string suffix;               ///< "weight": the full name is the node's name, a dot and this
  std::vector<std::int64_t> sizes;  ///< as torch stores it
  Initializer init;
  bool trainable = true;  ///< false for running statistics
  std::int64_t elements() const {
    std::int64_t n = 1;
    for (auto s : sizes) n *= s;
    return n;
  }
};

/// What one node costs for a given output box. Element counts, so that the data type can be chosen later.
struct Cost {
  double forward_flops = 0;
  double input_gradient_flops = 0;
  double weight_gradient_flops = 0;
  double elements_moved = 0;  ///< read and written once by forward, parameters included
  double elements_kept = 0;   ///< what backward wants of the forward pass, before any recomputation
  Cost& operator+=(const Cost& o) {
    forward_flops += o.forward_flops;
    input_gradient_flops += o.input_gradient_flops;
    weight_gradient_flops += o.weight_gradient_flops;
    elements_moved += o.elements_moved;
    elements_kept += o.elements_kept;
    return *this;
  }
  double flops() const { return forward_flops + input_gradient_flops + weight_gradient_flops; }
};

using Shapes = std::span<const Shape>;

/// Immutable; shared between graphs and threads.
class Operation {
 public:
  virtual ~Operation() = default;

  /// "conv", "batch_norm", ...
  virtual std::string_view kind() const = 0;
  /// Throws UsageError if the inputs do not fit; the graph adds the node's name.
  virtual Shape output_shape(Shapes inputs) const = 0;
  virtual std::vector<ParameterSpec> parameters(Shapes inputs) const { return {}; }

  /// Which part of input `i` the output box needs. It may reach outside the image: that is padding.
  virtual Box input_box(const Box& out, std::size_t i, Shapes inputs) const { return out; }
  /// Which part of the output belongs to the owner of `in`: boxes of a partition give boxes of a partition.
  virtual Box owned_output(const Box& in, Shapes inputs) const { return in; }
  /// Whether what lies outside the image counts as zero; then a rank may hold these zeros around its part.
  virtual bool pads_with_zeros() const { return false; }
  /// Whether each output is a sum over all positions of the input: then every rank adds up what it owns, and the sums
  /// meet, instead of the pixels.
  virtual bool reduces_positions() const { return false; }

  virtual Cost cost(Shapes inputs, const Box& out) const = 0;
  /// A few words for tables: "3x3 64->128 /2".
  virtual std::string describe() const { return {}; }
};

/// For outputs of one position a sample: they belong to whoever owns the input's first pixel.
inline Box first_pixel_owner(const Box& in) {
  const Interval one{0, in.height().contains(0) && in.width().contains(0) ? 1 : 0};
  return Box{{in.batch(), Interval{0, 1}, one, one}};
}

using OperationPtr = std::shared_ptr<const Operation>;

}  // namespace tessera
