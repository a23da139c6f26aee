#include "tessera/graph/graph.h"

#include <algorithm>
#include <cmath>

#include "tessera/base/error.h"

namespace tessera {

std::string Node::parameter_name(const std::string& suffix) const {
  for (const auto& spec : parameters)
    if (spec.suffix == suffix) return parameter_name(spec);
  throw Error(tessera::concat("internal error: node '", name, "' has no parameter '", suffix, "'"));
}

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
    if (name.empty()) throw;
    throw UsageError(concat("node '", name, "': ", error.what()));
  }
}

}  // namespace

Value Graph::add_node(OperationPtr op, std::vector<Value> inputs, std::string name) {
  return add_node([&] { return std::move(op); }, std::move(inputs), std::move(name));
}

Value Graph::add_node(const std::function<OperationPtr()>& make, std::vector<Value> inputs, std::string name) {
  Node node{std::move(name), {}, std::move(inputs), {}, static_cast<int>(cells_.size()) - 1, {}};
  named(node.name, [&] {
    node.op = make();
    return 0;
  });
  ensure(!nodes_.empty() && !node.inputs.empty(), "a ", node.op->kind(), " node has no input");
  if (node.name.empty()) node.name = tessera::concat(node.op->kind(), "_", nodes_.size());
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

Value Graph::cross_entropy(Value logits, std::vector<Value> auxiliary) {
  auxiliary.insert(auxiliary.begin(), logits);
  return make<CrossEntropy>(std::move(auxiliary), "loss", LabelKind::image);
}

Value Graph::pixel_cross_entropy(Value logits, std::vector<Value> auxiliary) {
  const Shape &plane = shape(logits), &image = nodes_.front().shape;
  require(plane.height == image.height && plane.width == image.width, "node 'loss': a mask has the ", image.height, "x",
          image.width, " pixels of its image, but the logits have ", plane.height, "x", plane.width);
  auxiliary.insert(auxiliary.begin(), logits);
  return make<CrossEntropy>(std::move(auxiliary), "loss", LabelKind::pixel);
}

void Graph::set_loss(const LossOptions& options) {
  require(
      !nodes_.empty() && nodes_.back().op && nodes_.back().op->kind() == CrossEntropy().kind(),
      "--loss, --label-smoothing, --class-weights, --dice-weight and --auxiliary-weight are for cross entropy, but the "
      "network ends in ",
      nodes_.empty() || !nodes_.back().op ? "no loss" : nodes_.back().op->kind());
  Node& loss = nodes_.back();
  require(std::isfinite(options.auxiliary) && options.auxiliary >= 0, "--auxiliary-weight ", options.auxiliary,
          " must be a number of at least 0");
  require(options.auxiliary == 0 || loss.inputs.size() > 1, "--auxiliary-weight ", options.auxiliary,
          ": the network has no output beside the trained one");
  require(!options.binary || label_kind() != LabelKind::pixel,
          "--loss binary is for networks that label images; this one labels pixels");
  loss.op = std::make_shared<CrossEntropy>(options.binary ? LabelKind::several : label_kind(), options);
  loss.shape = loss.op->output_shape(input_shapes(loss));
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
    for (const auto& spec : node.parameters) out.emplace_back(node.parameter_name(spec), spec);
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
  const auto labels = nodes_.empty() || !nodes_.back().op ? std::nullopt : nodes_.back().op->loss_labels();
  return labels.value_or(LabelKind::image);
}

std::vector<double> Graph::loss_weights() const {
  return nodes_.empty() || !nodes_.back().op ? std::vector<double>() : nodes_.back().op->loss_weights();
}

Cost Graph::cost(const Node& node, std::int64_t samples) const {
  return node.op ? node.op->cost(input_shapes(node), node.shape.box({0, samples})) : Cost{};
}

}  // namespace tessera
