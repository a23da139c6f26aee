#include "tessera/import/cells.h"

#include <algorithm>
#include <set>

#include "tessera/base/error.h"

namespace tessera {
namespace {

// What most of the work is done by.
bool is_heavy(const Node& node) {
  if (!node.op) return false;
  const auto kind = node.op->kind();
  return kind == "conv" || kind == "conv_transpose" || kind == "linear";
}

// Above this a cell is too large to be one unless nothing else goes.
constexpr int many_layers = 12;
// A cut with more values than that is no cut.
constexpr int few_values = 4;

class Cutter {
 public:
  Cutter(const Graph& graph, const std::vector<std::string>& modules) : graph_(graph), nodes_(graph.nodes()) {
    std::set<std::string> outer;  // modules that hold others
    for (const auto& module : modules)
      for (auto dot = module.find('.'); dot != std::string::npos; dot = module.find('.', dot + 1))
        outer.insert(module.substr(0, dot));
    for (const auto& module : modules) {
      const auto dot = module.rfind('.');
      const bool inner = outer.contains(module) || module.empty();
      blocks_.push_back(inner ? module : dot == std::string::npos ? "" : module.substr(0, dot));
    }
    crossing_.assign(nodes_.size() + 1, 0);
    const auto readers = graph.consumers();
    // Images are read where they are needed, and do not cross.
    for (std::size_t v = 1; v < nodes_.size(); ++v)
      for (int n = static_cast<int>(v) + 1; !readers[v].empty() && n <= readers[v].back(); ++n)
        ++crossing_[static_cast<std::size_t>(n)];
  }

  std::vector<Cell> cells() {
    starts_ = {0};
    int layers = 0;
    for (std::size_t n = 1; n < nodes_.size(); ++n) {
      const bool heavy = is_heavy(nodes_[n]);
      const bool another = n > 1 && blocks_[n] != blocks_[n - 1];
      if (crossing_[n] <= 1 && layers > 0 && (another || heavy)) {
        starts_.insert(n);
        layers = 0;
      }
      layers += heavy;
    }
    divide([&](std::size_t n) { return blocks_[n] != blocks_[n - 1]; });
    divide([&](std::size_t n) { return is_heavy(nodes_[n]) && crossing_[n] <= few_values; });
    join_idle();
    return named();
  }

 private:
  std::size_t end_of(std::set<std::size_t>::const_iterator start) const {
    const auto next = std::next(start);
    return next == starts_.end() ? nodes_.size() : *next;
  }
  int layers_in(std::size_t first, std::size_t end) const {
    int layers = 0;
    for (std::size_t n = first; n < end; ++n) layers += is_heavy(nodes_[n]);
    return layers;
  }

  // Cuts cells of many layers where `may` says so.
  template <class May>
  void divide(const May& may) {
    std::set<std::size_t> more;
    for (auto start = starts_.begin(); start != starts_.end(); ++start) {
      if (layers_in(*start, end_of(start)) <= many_layers) continue;
      for (std::size_t n = *start + 1; n < end_of(start); ++n)
        if (may(n)) more.insert(n);
    }
    starts_.merge(more);
  }

  // A cell without a layer goes with the next one, or the last one with the one before it.
  void join_idle() {
    for (auto start = starts_.begin(); start != starts_.end();) {
      const bool idle = layers_in(*start, end_of(start)) == 0;
      const auto next = std::next(start);
      if (idle && next != starts_.end() && *start == 0)
        start = starts_.erase(next), start = starts_.begin();
      else if (idle && next != starts_.end())
        start = starts_.erase(next), start = std::prev(start);
      else if (idle && start != starts_.begin())
        start = starts_.erase(start);
      else
        ++start;
    }
  }

  std::vector<Cell> named() const {
    std::vector<Cell> out;
    std::set<std::string> taken;
    for (auto start = starts_.begin(); start != starts_.end(); ++start) {
      std::size_t layer = *start;
      while (layer + 1 < end_of(start) && !is_heavy(nodes_[layer])) ++layer;
      std::string name = blocks_[layer];
      if (name.empty()) name = start == starts_.begin() ? "stem" : std::next(start) == starts_.end() ? "head" : "";
      if (name.empty() || !taken.insert(name).second) taken.insert(name = nodes_[layer].name);
      out.push_back({name, static_cast<int>(*start)});
    }
    return out;
  }

  const Graph& graph_;
  const std::vector<Node>& nodes_;
  std::vector<std::string> blocks_;
  std::vector<int> crossing_;  // by node: values that are made before it and read from it on
  std::set<std::size_t> starts_;
};

}  // namespace

std::vector<Cell> find_cells(const Graph& graph, const std::vector<std::string>& modules) {
  ensure(modules.size() == graph.nodes().size(), "a module for every node");
  return Cutter(graph, modules).cells();
}

}  // namespace tessera
