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

namespace {

template <class F>
auto named(const std::string& name, const F& f) {
  try {
    return f();
  } catch (const UsageError& error) {
    throw UsageError(concat("node '", name, "': ", error.what()));
  }
}

}  // namespace

Value Graph::add_node(OperationPtr op, std::vector<Value> inputs, std::string name) {
  ensure(!nodes_.empty() && !inputs.empty(), "a ", op->kind(), " node has no input");
  if (name.empty()) name = automatic_name(op->kind());
  Node node{std::move(name), std::move(op), std::move(inputs), {}, static_cast<int>(cells_.size()) - 1, {}};
  for (const auto& other : nodes_)
    require(other.name != node.name, "two nodes of the network are called '", node.name, "'; each needs its own name");
  named(node.name, [&] {
    const auto shapes = input_shapes(node);
    node.shape = node.op->output_shape(shapes);
    node.parameters = node.op->parameters(shapes);
    return 0;
  });
  nodes_.push_back(std::move(node));
  return {static_cast<int>(nodes_.size()) - 1};
}

std::string Graph::automatic_name(std::string_view kind) const { return tessera::concat(kind, "_", nodes_.size()); }

// Operations check their options when they are made: these complaints carry the node's name, too.
template <class Op, class... Options>
Value Graph::make(std::vector<Value> inputs, std::string name, const Options&... options) {
  auto op = named(name, [&] { return std::make_shared<Op>(options...); });
  return add_node(std::move(op), std::move(inputs), std::move(name));
}

Value Graph::conv(Value x, const ConvOptions& o, std::string name) { return make<Conv>({x}, std::move(name), o); }
Value Graph::conv_transpose(Value x, const ConvTransposeOptions& o, std::string name) {
  return make<ConvTranspose>({x}, std::move(name), o);
}
Value Graph::upsample(Value x, const UpsampleOptions& o) { return make<Upsample>({x}, automatic_name("upsample"), o); }
Value Graph::batch_norm(Value x, std::string name, const BatchNormOptions& o) {
  return make<BatchNorm>({x}, std::move(name), o);
}
Value Graph::relu(Value x) { return make<Relu>({x}, automatic_name("relu")); }
Value Graph::max_pool(Value x, const PoolOptions& o) { return make<MaxPool>({x}, automatic_name("max_pool"), o); }
Value Graph::avg_pool(Value x, const PoolOptions& o) { return make<AvgPool>({x}, automatic_name("avg_pool"), o); }
Value Graph::global_avg_pool(Value x) { return make<GlobalAvgPool>({x}, automatic_name("global_avg_pool")); }
Value Graph::add(Value a, Value b) { return make<Add>({a, b}, automatic_name("add")); }
Value Graph::concat(std::vector<Value> parts) { return make<Concat>(std::move(parts), automatic_name("concat")); }
Value Graph::dropout(Value x, double p) { return make<Dropout>({x}, automatic_name("dropout"), p); }
Value Graph::flatten(Value x) { return make<Flatten>({x}, automatic_name("flatten")); }
Value Graph::linear(Value x, const LinearOptions& o, std::string name) { return make<Linear>({x}, std::move(name), o); }
Value Graph::cross_entropy(Value logits) { return make<CrossEntropy>({logits}, "loss", LabelKind::image); }
Value Graph::pixel_cross_entropy(Value logits) {
  const Shape &plane = shape(logits), &image = nodes_.front().shape;
  require(plane.height == image.height && plane.width == image.width, "node 'loss': a mask has the ", image.height, "x",
          image.width, " pixels of its image, but the logits have ", plane.height, "x", plane.width);
  return make<CrossEntropy>({logits}, "loss", LabelKind::pixel);
}

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

Value Graph::logits() const {
  ensure(!nodes_.empty() && nodes_.back().op, "a graph without a loss has no logits");
  return nodes_.back().inputs[0];
}

LabelKind Graph::label_kind() const {
  const auto* loss = nodes_.empty() ? nullptr : dynamic_cast<const CrossEntropy*>(nodes_.back().op.get());
  return loss ? loss->labels : LabelKind::image;
}

Cost Graph::cost(const Node& node, std::int64_t samples) const {
  return node.op ? node.op->cost(input_shapes(node), node.shape.box({0, samples})) : Cost{};
}

}  // namespace tessera
