#include "tessera/graph/class_maps.h"

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera {
namespace {

[[noreturn]] void cannot(const Node& node) {
  throw UsageError(concat("--heatmap is for networks that end in a mean over all positions and linear layers, but in ",
                          "this one '", node.name, "' (", node.op ? node.op->kind() : "input",
                          ") comes before the logits"));
}

// A graph with the cells and nodes of another, of which some are left out or replaced.
class Copy {
 public:
  explicit Copy(const Graph& from) : from_(from), copies_(from.nodes().size()) {}

  /// The value, and whatever it is made from.
  Value add_all(Value last) {
    std::vector<bool> wanted(copies_.size());
    wanted.at(static_cast<std::size_t>(last.id)) = true;
    for (int v = last.id; v >= 0; --v)
      for (const Value input : from_.node({v}).inputs)
        if (wanted[static_cast<std::size_t>(v)]) wanted[static_cast<std::size_t>(input.id)] = true;
    for (int v = 0; v <= last.id; ++v)
      if (wanted[static_cast<std::size_t>(v)]) add(v);
    return copy_of(last);
  }
  /// An operation with the name and the parameters of a node, whose sizes may have more sides.
  Value add(const OperationPtr& op, const std::vector<Value>& inputs, const Node& like) {
    const Value copy = to_.add_node(op, inputs, like.name);
    auto& specs = to_.parameters_of(copy);
    for (std::size_t i = 0; i < specs.size(); ++i) {
      const std::vector<std::int64_t> sizes = specs[i].sizes;
      specs[i] = like.parameters[i];
      specs[i].as_matrix = specs[i].as_matrix || specs[i].sizes.size() < sizes.size();
      specs[i].sizes = sizes;
    }
    return copy;
  }
  void enter(int cell) {
    if (cell == cell_) return;
    cell_ = cell;
    to_.cell(from_.cells()[static_cast<std::size_t>(cell)].name);
  }
  Graph& graph() { return to_; }

 private:
  Value& copy_of(Value v) { return copies_[static_cast<std::size_t>(v.id)]; }
  void add(int v) {
    const Node& node = from_.node({v});
    enter(node.cell);
    std::vector<Value> inputs;
    for (const Value input : node.inputs) inputs.push_back(copy_of(input));
    copy_of({v}) = node.op ? add(node.op, inputs, node) : to_.input(node.shape);
  }

  const Graph& from_;
  Graph to_;
  std::vector<Value> copies_;
  int cell_ = -1;
};

}  // namespace

ClassMaps with_class_maps(const Graph& graph) {
  require(graph.label_kind() != LabelKind::pixel,
          "--heatmap is for networks that label images; the masks of this one say where it looked");
  std::vector<std::pair<const Node*, OperationPtr>> layers;  // behind the mean; the last one first
  const Node* mean = &graph.node(graph.logits());
  for (; !mean->op || mean->op->kind() != "global_avg_pool"; mean = &graph.node(mean->inputs[0])) {
    const auto op = mean->op ? mean->op->before_mean() : std::nullopt;
    if (!op || graph.shape(mean->inputs[0]).positions() != 1) cannot(*mean);
    if (*op) layers.emplace_back(mean, *op);
  }
  Copy copy(graph);
  Graph& out = copy.graph();
  Value maps = copy.add_all(mean->inputs[0]);
  // In one cell with the mean: the stage that has the loss makes them.
  copy.enter(mean->cell);
  if (layers.empty()) maps = out.activate(maps, {ActivationKind::times, 1});
  std::reverse(layers.begin(), layers.end());
  for (const auto& [layer, op] : layers) maps = copy.add(op, {maps}, *layer);
  const Value logits = copy.add(mean->op, {maps}, *mean);
  out.add_node(std::make_shared<CrossEntropy>(graph.label_kind()), {logits}, graph.nodes().back().name);
  return {std::move(out), maps};
}

}  // namespace tessera
