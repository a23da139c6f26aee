// The network: operations and the values between them, with no word of ranks or tiles. Shapes are known as soon as a
// node is added. Nodes stand in the order in which they were added, and a node's inputs come before it.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/graph/operation.h"
#include "tessera/graph/operations/channels.h"
#include "tessera/graph/operations/conv.h"
#include "tessera/graph/operations/elementwise.h"
#include "tessera/graph/operations/head.h"
#include "tessera/graph/operations/norm.h"
#include "tessera/graph/operations/pool.h"
#include "tessera/graph/operations/upsample.h"

namespace tessera {

/// A tensor between operations: the output of the node with this index.
struct Value {
  int id = -1;
  friend bool operator==(const Value&, const Value&) = default;
  friend auto operator<=>(const Value&, const Value&) = default;
};

struct Node {
  std::string name;  ///< unique; parameters are called name.suffix
  OperationPtr op;   ///< null for the input
  std::vector<Value> inputs;
  Shape shape;   ///< of the output, one sample
  int cell = 0;  ///< index into cells()
  std::vector<ParameterSpec> parameters;

  /// The full name of one of its parameters.
  std::string parameter_name(const ParameterSpec& spec) const {
    return spec.name.empty() ? name + "." + spec.suffix : spec.name;
  }
  /// Of the parameter with this suffix; throws Error if there is none.
  std::string parameter_name(const std::string& suffix) const;
};

/// The unit that --balance counts: a stem, a residual block, an AmoebaNet cell, a head.
struct Cell {
  std::string name;
  int first_node = 0;
};

/// A value type; cheap to copy (operations are shared).
class Graph {
 public:
  /// Starts a cell: the nodes that follow belong to it.
  void cell(std::string name);

  Value input(const Shape& shape);
  Value conv(Value x, ConvOptions o, std::string name) {
    if (o.pad_mode != PadMode::zeros) {
      x = make<Pad>({x}, name + ".pad", PadOptions{o.pad, o.pad_end, o.pad_mode});
      o.pad = 0;
      o.pad_end.reset();
      o.pad_mode = PadMode::zeros;
    }
    return make<Conv>({x}, std::move(name), o);
  }
  Value pad(Value x, const PadOptions& o) { return make<Pad>({x}, {}, o); }
  Value resize(Value x, const ResizeOptions& o) { return make<Resize>({x}, {}, o); }
  Value adaptive_pool(Value x, const AdaptivePoolOptions& o) { return make<AdaptivePool>({x}, {}, o); }
  Value conv_transpose(Value x, const ConvTransposeOptions& o, std::string name) {
    return make<ConvTranspose>({x}, std::move(name), o);
  }
  Value upsample(Value x, const UpsampleOptions& o = {}) { return make<Upsample>({x}, {}, o); }
  Value batch_norm(Value x, std::string name, const BatchNormOptions& o = {}) {
    return make<Norm>({x}, std::move(name), o);
  }
  Value group_norm(Value x, std::string name, const GroupNormOptions& o) { return make<Norm>({x}, std::move(name), o); }
  Value instance_norm(Value x, std::string name, const InstanceNormOptions& o = {}) {
    return make<Norm>({x}, std::move(name), o);
  }
  Value layer_norm(Value x, std::string name, const LayerNormOptions& o = {}) {
    return make<LayerNorm>({x}, std::move(name), o);
  }
  /// Each channel times a parameter.
  Value scale(Value x, std::string name, const ScaleOptions& o = {}) { return make<Norm>({x}, std::move(name), o); }
  Value relu(Value x) { return activate(x, {}); }
  Value activate(Value x, const Activation& a) { return make<Activate>({x}, {}, a); }
  Value max_pool(Value x, const PoolOptions& o) { return make<MaxPool>({x}, {}, o); }
  Value avg_pool(Value x, const PoolOptions& o) { return make<AvgPool>({x}, {}, o); }
  Value global_avg_pool(Value x) { return make<GlobalAvgPool>({x}, {}); }
  /// Of two values of one shape, or of one and another that stands for all of its channels or positions: see
  /// Arithmetic.
  Value add(Value a, Value b) { return combine(Combine::sum, a, b); }
  Value multiply(Value a, Value b) { return combine(Combine::product, a, b); }
  Value prelu(Value x, std::string name, bool by_channel = true) {
    return make<PRelu>({x}, std::move(name), by_channel);
  }
  Value slice_channels(Value x, std::int64_t first, std::int64_t count) {
    return make<SliceChannels>({x}, {}, first, count);
  }
  Value channel_shuffle(Value x, std::int64_t groups) { return make<ChannelShuffle>({x}, {}, groups); }
  Value concat(std::vector<Value> parts) { return make<Concat>(std::move(parts), {}); }
  Value dropout(Value x, double probability, DropoutOf what = DropoutOf::elements) {
    return make<Dropout>({x}, {}, probability, what);
  }
  Value flatten(Value x) { return make<Flatten>({x}, {}); }
  Value linear(Value x, const LinearOptions& o, std::string name) { return make<Linear>({x}, std::move(name), o); }
  /// The end of the graph: a label for every image, or for every pixel of it. Logits of auxiliary heads may follow, to
  /// be weighed by set_loss().
  Value cross_entropy(Value logits, std::vector<Value> auxiliary = {});
  Value pixel_cross_entropy(Value logits, std::vector<Value> auxiliary = {});
  /// Changes the options of that cross entropy. Throws UsageError if the graph ends in another loss, or in none.
  void set_loss(const LossOptions& options);
  /// Any operation, a user's own too. Throws UsageError that names the node if the shapes do not fit.
  Value add_node(OperationPtr op, std::vector<Value> inputs, std::string name = {});

  /// For whoever knows more of a node's parameters than its operation: first values, names, what stays fixed. Their
  /// number, order, suffixes and sizes must stay.
  std::vector<ParameterSpec>& parameters_of(Value v) { return nodes_.at(static_cast<std::size_t>(v.id)).parameters; }

  const std::vector<Node>& nodes() const { return nodes_; }
  const std::vector<Cell>& cells() const { return cells_; }
  const Node& node(Value v) const { return nodes_.at(static_cast<std::size_t>(v.id)); }
  const Shape& shape(Value v) const { return node(v).shape; }
  std::vector<Shape> input_shapes(const Node& node) const;
  /// consumers()[v] are the nodes that read value v, in order.
  std::vector<std::vector<int>> consumers() const;
  /// Full name and spec of every parameter, in order of the nodes.
  std::vector<std::pair<std::string, ParameterSpec>> parameters() const;
  std::int64_t trainable_elements() const;
  /// What the loss, the last node, looks at.
  Value logits() const;
  /// What the loss needs labels for; images, if it does not say otherwise.
  LabelKind label_kind() const;
  /// What a label of each class counts in the loss; empty: 1.
  std::vector<double> loss_weights() const;
  /// Cost of a node for all positions of `samples` samples.
  Cost cost(const Node& node, std::int64_t samples) const;

 private:
  // The larger value comes first: it gives the result its shape.
  Value combine(Combine what, Value a, Value b) {
    if (shape(a).elements() < shape(b).elements()) std::swap(a, b);
    return make<Arithmetic>({a, b}, {}, what);
  }
  /// Without a name: the operation's kind and a number. What an operation says of its options gets the name, too.
  template <class Op, class... Options>
  Value make(std::vector<Value> inputs, std::string name, const Options&... options) {
    return add_node([&]() -> OperationPtr { return std::make_shared<Op>(options...); }, std::move(inputs),
                    std::move(name));
  }
  Value add_node(const std::function<OperationPtr()>& make, std::vector<Value> inputs, std::string name);

  std::vector<Node> nodes_;
  std::vector<Cell> cells_;
};

}  // namespace tessera
