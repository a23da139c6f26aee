// The network: operations and the values between them, with no word of ranks or tiles. Shapes are known as soon as a
// node is added. Nodes stand in the order in which they were added, and a node's inputs come before it.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tessera/graph/operation.h"
#include "tessera/graph/operations/conv.h"
#include "tessera/graph/operations/elementwise.h"
#include "tessera/graph/operations/head.h"
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
  Value conv(Value x, const ConvOptions& options, std::string name);
  Value conv_transpose(Value x, const ConvTransposeOptions& options, std::string name);
  Value upsample(Value x, const UpsampleOptions& options = {});
  Value batch_norm(Value x, std::string name, const BatchNormOptions& options = {});
  Value relu(Value x);
  Value max_pool(Value x, const PoolOptions& options);
  Value avg_pool(Value x, const PoolOptions& options);
  Value global_avg_pool(Value x);
  Value add(Value a, Value b);
  Value concat(std::vector<Value> parts);
  Value dropout(Value x, double probability);
  Value flatten(Value x);
  Value linear(Value x, const LinearOptions& options, std::string name);
  /// The end of the graph: a label for every image, or for every pixel of it.
  Value cross_entropy(Value logits);
  Value pixel_cross_entropy(Value logits);
  /// Any operation, a user's own too. Throws UsageError that names the node if the shapes do not fit.
  Value add_node(OperationPtr op, std::vector<Value> inputs, std::string name = {});

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
  /// Cost of a node for all positions of `samples` samples.
  Cost cost(const Node& node, std::int64_t samples) const;

 private:
  std::string automatic_name(std::string_view kind) const;
  template <class Op, class... Options>
  Value make(std::vector<Value> inputs, std::string name, const Options&... options);

  std::vector<Node> nodes_;
  std::vector<Cell> cells_;
};

}  // namespace tessera
