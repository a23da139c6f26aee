// What every operation knows about itself without touching a tensor: shape, regions, parameters, cost, what backward
// wants of forward, and whether ranks must agree on something in the middle of it. Nobody else decides by the type of
// an operation. Its kernel is registered by `kind` in ops/, its reference in oracle/.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/geometry/box.h"
#include "tessera/graph/pointwise.h"

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
  enum class Kind { constant, uniform, normal, given };
  Kind kind = Kind::constant;
  double scale = 0;  ///< the constant, half the width of the uniform interval around 0, or the standard deviation
  std::function<double(std::int64_t index)> value = {};  ///< given: of every element, in torch's order
};

struct ParameterSpec {
  std::string suffix;               ///< "weight": the full name is the node's name, a dot and this
  std::vector<std::int64_t> sizes;  ///< as torch stores it
  Initializer init;
  bool trainable = true;   ///< false for running statistics, and for what is fixed
  bool fixed = false;      ///< a weight that is not trained, though backward could; trainable is then false
  bool wide = false;       ///< kernels see it as it is kept, not rounded to the type of the activations
  double decay = 1;        ///< running statistics: what is left of the old one after a micro
  std::string name = {};   ///< its full name, where that is not the node's name, a dot and the suffix
  bool as_matrix = false;  ///< files have it without its last two sides, which are 1: a linear layer at every position
  std::int64_t elements() const {
    std::int64_t n = 1;
    for (auto s : sizes) n *= s;
    return n;
  }
  /// The sizes that it has in files.
  std::vector<std::int64_t> stored_sizes() const {
    return as_matrix ? std::vector<std::int64_t>(sizes.begin(), sizes.begin() + 2) : sizes;
  }
};

/// What one node costs for a given output box. Element counts, so that the data type can be chosen later.
struct Cost {
  double forward_flops = 0;
  double input_gradient_flops = 0;
  double weight_gradient_flops = 0;
  double elements_moved = 0;  ///< read and written once by forward, parameters included
  Cost& operator+=(const Cost& o) {
    forward_flops += o.forward_flops;
    input_gradient_flops += o.input_gradient_flops;
    weight_gradient_flops += o.weight_gradient_flops;
    elements_moved += o.elements_moved;
    return *this;
  }
  double flops() const { return forward_flops + input_gradient_flops + weight_gradient_flops; }
};

/// Memory that the usual kernels of an operation take beside its inputs, its output and their gradients. Bytes.
struct Workspace {
  double saved = 0;  ///< kept from forward to backward
  /// While they run.
  double forward = 0, input_gradient = 0, weight_gradient = 0;
  bool writes_in_place =
      false;                  ///< forward writes into memory that it is given, though it is a part of something larger
  bool shares_input = false;  ///< the output is the input's memory, seen otherwise; so are the gradients
  /// What an input's gradient covers, if that is more than what the output sees.
  std::optional<Box> input_gradient_box = {};
};

/// What has a label: every image (classification), or every pixel, by a mask (segmentation). Or an image has any number
/// of labels: labels are then [samples, classes], 1 for those that it has and 0 for the others.
enum class LabelKind { image, pixel, several };

/// What backward wants to see again of forward.
struct Needs {
  bool inputs = false;  ///< the data of all inputs
  bool output = false;  ///< that of the output
};

/// With whom ranks agree in the middle of an operation, on a few numbers that each has of its own part.
enum class Agreement {
  none,
  norm,   ///< ranks whose samples and tiles are normalised together
  tiles,  ///< ranks that hold tiles of the same samples
};

using Shapes = std::span<const Shape>;

/// Immutable; shared between graphs and threads. What is pure here must be said of every operation.
class Operation {
 public:
  virtual ~Operation() = default;

  /// "conv", "batch_norm", ...: what its kernel and its reference are registered by.
  virtual std::string_view kind() const = 0;
  /// Throws UsageError if the inputs do not fit; the graph adds the node's name.
  virtual Shape output_shape(Shapes inputs) const = 0;
  virtual std::vector<ParameterSpec> parameters(Shapes inputs) const { return {}; }
  virtual Cost cost(Shapes inputs, const Box& out) const = 0;
  /// For an output box, with numbers of so many bytes.
  virtual Workspace workspace(Shapes inputs, const Box& out, std::int64_t element_bytes) const { return {}; }

  /// Which part of input `i` the output box needs. It may reach outside the image: that is padding.
  virtual Box input_box(const Box& out, std::size_t i, Shapes inputs) const { return out; }
  /// Which part of the output belongs to the owner of `in`, a part of the first input: boxes of a partition give boxes
  /// of a partition.
  virtual Box owned_output(const Box& in, Shapes inputs) const { return in; }
  /// Whether what lies outside the image counts as zero; then a rank may hold these zeros around its part.
  virtual bool pads_with_zeros() const { return false; }
  /// Whether each output is a sum over all positions of the input: then every rank adds up what it owns, and the sums
  /// meet, instead of the pixels.
  virtual bool reduces_positions() const { return false; }
  virtual Agreement agreement() const { return reduces_positions() ? Agreement::tiles : Agreement::none; }

  virtual Needs needs() const = 0;
  /// Whether forward may be run once more, on the same inputs, to make an output that was thrown away.
  virtual bool repeats() const = 0;
  /// Its formula, if an output depends on its own position of the inputs alone and by arithmetic that can be fused with
  /// that of others.
  virtual std::optional<PointwiseFormula> formula() const { return std::nullopt; }
  /// In a network that is used, not trained, and behind a mean over all positions: the operation that does the same
  /// before the mean, at every position; null: none is needed. Nothing where the two cannot change places.
  virtual std::optional<std::shared_ptr<const Operation>> before_mean() const { return std::nullopt; }
  /// Of a loss, the end of a graph: what it wants labels for.
  virtual std::optional<LabelKind> loss_labels() const { return std::nullopt; }
  /// A loss whose labels do not all count the same: what one of each class counts.
  virtual std::vector<double> loss_weights() const { return {}; }
};

/// What point-wise operations have in common: the step that they become part of says what backward needs.
class PointwiseOperation : public Operation {
 public:
  Needs needs() const final { return {}; }
  bool repeats() const final { return true; }
};

/// For outputs of one position a sample: they belong to whoever owns the input's first pixel.
inline Box first_pixel_owner(const Box& in) {
  const Interval one{0, in.height().contains(0) && in.width().contains(0) ? 1 : 0};
  return Box{{in.batch(), Interval{0, 1}, one, one}};
}

using OperationPtr = std::shared_ptr<const Operation>;

}  // namespace tessera
