#include "tessera/graph/graph.h"

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera {

void Graph::cell(std::string name) { cells_.push_back({std::move(name), static_cast<int>(nodes_.size())}); }

Value Graph::input(const Shape& shape) {
  ensure(nodes_.empty(), "a graph has one input, and it comes first");
  require(shape.channels > 0 && shape.height > 0 && shape.width > 0, "an image of ", shape,
          " is empty; change --image-size");
  if (cells_.empty()) cell("input");
  nodes_.push_back({"input", nullptr, {}, shape, 0, {}});
  return {0};
}

Value Graph::add_node(OperationPtr op, std::vector<Value> inputs, std::string name) {
  ensure(!nodes_.empty() && !inputs.empty(), "a ", op->kind(), " node has no input");
  if (name.empty()) name = tessera::concat(op->kind(), "_", nodes_.size());
  Node node{std::move(name), std::move(op), std::move(inputs), {}, static_cast<int>(cells_.size()) - 1, {}};
  for (const auto& other : nodes_)
    ensure(other.name != node.name, "two nodes are called '", node.name, "'");
  const auto shapes = input_shapes(node);
  try {
    node.shape = node.op->output_shape(shapes);
    node.parameters = node.op->parameters(shapes);
  } catch (const UsageError& error) {
    throw UsageError(tessera::concat("node '", node.name, "': ", error.what()));
  }
  nodes_.push_back(std::move(node));
  return {static_cast<int>(nodes_.size()) - 1};
}

Value Graph::conv(Value x, const ConvOptions& options, std::string name) {
  return add_node(std::make_shared<Conv>(options), {x}, std::move(name));
}
Value Graph::batch_norm(Value x, std::string name, const BatchNormOptions& options) {
  return add_node(std::make_shared<BatchNorm>(options), {x}, std::move(name));
}
Value Graph::relu(Value x) { return add_node(std::make_shared<Relu>(), {x}); }
Value Graph::max_pool(Value x, const PoolOptions& options) { return add_node(std::make_shared<MaxPool>(options), {x}); }
Value Graph::avg_pool(Value x, const PoolOptions& options) { return add_node(std::make_shared<AvgPool>(options), {x}); }
Value Graph::global_avg_pool(Value x) { return add_node(std::make_shared<GlobalAvgPool>(), {x}); }
Value Graph::add(Value a, Value b) { return add_node(std::make_shared<Add>(), {a, b}); }
Value Graph::concat(std::vector<Value> parts) { return add_node(std::make_shared<Concat>(), std::move(parts)); }
Value Graph::dropout(Value x, double probability) { return add_node(std::make_shared<Dropout>(probability), {x}); }
Value Graph::flatten(Value x) { return add_node(std::make_shared<Flatten>(), {x}); }
Value Graph::linear(Value x, const LinearOptions& options, std::string name) {
  return add_node(std::make_shared<Linear>(options), {x}, std::move(name));
}
Value Graph::cross_entropy(Value logits) { return add_node(std::make_shared<CrossEntropy>(), {logits}, "loss"); }

std::vector<Shape> Graph::input_shapes(const Node& node) const {
  std::vector<Shape> shapes;
  for (Value v : node.inputs) shapes.push_back(shape(v));
  return shapes;
}

std::vector<std::vector<int>> Graph::consumers() const {
  std::vector<std::vector<int>> out(nodes_.size());
  for (std::size_t n = 0; n < nodes_.size(); ++n)
    for (Value v : nodes_[n].inputs) out[static_cast<std::size_t>(v.id)].push_back(static_cast<int>(n));
  return out;
}

std::vector<std::pair<std::string, ParameterSpec>> Graph::parameters() const {
  std::vector<std::pair<std::string, ParameterSpec>> out;
  for (const auto& node : nodes_)
    for (const auto& spec : node.parameters) out.emplace_back(node.name + "." + spec.suffix, spec);
  return out;
}

std::int64_t Graph::trainable_elements() const {
  std::int64_t total = 0;
  for (const auto& node : nodes_)
    for (const auto& spec : node.parameters) total += spec.trainable ? spec.elements() : 0;
  return total;
}

Cost Graph::cost(const Node& node, std::int64_t samples) const {
  return node.op ? node.op->cost(input_shapes(node), node.shape.box({0, samples})) : Cost{};
}

}  // namespace tessera
