#include <fmt/core.h>

#include <map>

#include "commands.h"
#include "network.h"
#include "tessera/base/error.h"
#include "tessera/base/text.h"

namespace tessera {
namespace {

std::string shape_text(const Shape& s) { return fmt::format("{}x{}x{}", s.channels, s.height, s.width); }

std::int64_t elements_of(const Node& node, bool trained) {
  std::int64_t n = 0;
  for (const auto& spec : node.parameters)
    if (trained ? spec.trainable : spec.fixed) n += spec.elements();
  return n;
}

// "3 conv, 3 batch_norm, 2 relu": in the order in which they come.
std::string operations_of(const std::vector<const Node*>& nodes) {
  std::vector<std::pair<std::string, int>> kinds;
  for (const Node* node : nodes) {
    if (!node->op) continue;
    const std::string kind(node->op->kind());
    auto found = std::find_if(kinds.begin(), kinds.end(), [&](const auto& k) { return k.first == kind; });
    if (found == kinds.end()) found = kinds.insert(kinds.end(), {kind, 0});
    ++found->second;
  }
  std::vector<std::string> words;
  for (const auto& [kind, count] : kinds) words.push_back(count == 1 ? kind : fmt::format("{} {}", count, kind));
  return join(words, ", ");
}

std::string cell_table(const Graph& graph) {
  Table table({"cell", "output", "parameters", "GFLOP", "operations"});
  for (std::size_t c = 0; c < graph.cells().size(); ++c) {
    std::vector<const Node*> nodes;
    Cost cost;
    std::int64_t parameters = 0;
    for (const auto& node : graph.nodes()) {
      if (node.cell != static_cast<int>(c)) continue;
      nodes.push_back(&node);
      cost += graph.cost(node, 1);
      parameters += elements_of(node, true);
    }
    const Node* last = nodes.back();
    for (const Node* node : nodes)
      if (!node->op || !node->op->loss_labels()) last = node;
    table.row({graph.cells()[c].name, shape_text(last->shape), human_count(static_cast<double>(parameters)),
               fmt::format("{:.3f}", cost.forward_flops / 1e9), operations_of(nodes)});
  }
  return table.str();
}

std::string node_table(const Graph& graph) {
  Table table({"node", "operation", "output", "parameters", "inputs"});
  for (const auto& node : graph.nodes()) {
    std::vector<std::string> inputs;
    for (const Value v : node.inputs) inputs.push_back(graph.node(v).name);
    table.row({node.name, node.op ? std::string(node.op->kind()) : "images", shape_text(node.shape),
               human_count(static_cast<double>(elements_of(node, true))), join(inputs, ", ")});
  }
  return table.str();
}

void print_facts(const ForeignModel& model) {
  const ImportedNetwork& n = model.network;
  fmt::print("{}; output{} {}, trained {}\n", model.file->kind(), n.outputs.size() == 1 ? "" : "s",
             join(n.outputs, ", "), n.trained);
  if (n.norms > 0) fmt::print("{}, {} frozen\n", counted(n.norms, "norm"), n.frozen_norms);
  if (!n.dropouts.empty() || n.idle_dropouts > 0)
    fmt::print("{}, {} switched off\n",
               counted(static_cast<std::int64_t>(n.dropouts.size()) + n.idle_dropouts, "dropout"), n.idle_dropouts);
  if (n.fixed > 0) fmt::print("{} fixed\n", counted(n.fixed, "parameter"));
  if (!n.unused.empty())
    fmt::print("{} not used by this output\n", counted(static_cast<std::int64_t>(n.unused.size()), "tensor"));
  if (n.evaluating())
    fmt::print("exported in evaluation mode: to train all of it, call .train() before it is exported\n");
}

}  // namespace

void run_show(const ShowOptions& options, const ModelRegistry& models, NetworkFiles& files) {
  ModelOptions model{.name = options.model};
  model.image = parse_image_size(options.image_size);
  model.image.channels = options.channels;
  model.output = options.output;
  Graph graph;
  if (is_network_file(models, options.model)) {
    const ForeignModel foreign = files.import(model);
    print_facts(foreign);
    graph = foreign.network.graph;
  } else {
    graph = models.build(model);
  }
  Cost cost;
  for (const auto& node : graph.nodes()) cost += graph.cost(node, 1);
  fmt::print("{}", options.verbose ? node_table(graph) : cell_table(graph));
  fmt::print("{} cells, {} nodes, {} trainable parameters, {:.3f} GFLOP for one image of {}\n", graph.cells().size(),
             graph.nodes().size(), human_count(static_cast<double>(graph.trainable_elements())),
             cost.forward_flops / 1e9, shape_text(model.image));
}

}  // namespace tessera
