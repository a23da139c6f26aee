#include "tessera/oracle/foreign_module.h"

#include <torch/library.h>
#include <torch/types.h>

#include <deque>

#include "tessera/base/error.h"
#include "tessera/base/random.h"
#include "tessera/oracle/reference.h"

namespace tessera {
namespace {

struct AskedFor {
  std::deque<const Node*> nodes;  // null: not in the graph
  DropoutsOf::Draw draw;
};

thread_local std::unique_ptr<AskedFor> waiting;

const Node* next_node() {
  ensure(!waiting->nodes.empty(), "the module drops something that the graph does not");
  const Node* node = waiting->nodes.front();
  waiting->nodes.pop_front();
  return node;
}

// Of a batch of the node's values: 1 for what is kept.
torch::Tensor kept(const Node& node, const torch::Tensor& x) {
  const Shape& s = node.shape;
  const std::vector<torch::Tensor> like{
      torch::empty({1}, x.options()).expand({x.size(0), s.channels, s.height, s.width})};
  const auto& draw = waiting->draw;
  return kept_by({.node = node,
                  .inputs = like,
                  .parameter = {},
                  .labels = {},
                  .seed = draw.seed,
                  .step = draw.step,
                  .first_sample = draw.first_sample});
}

// The module may have the same numbers in other dimensions.
torch::Tensor shaped(const torch::Tensor& mask, const Node& node, const torch::Tensor& x) {
  const Shape& s = node.shape;
  if (mask.numel() == mask.size(0)) {  // samples
    std::vector<std::int64_t> sizes(static_cast<std::size_t>(x.dim()), 1);
    sizes[0] = mask.size(0);
    return mask.reshape(sizes);
  }
  if (x.dim() == 4 && x.size(1) == s.channels && x.size(3) == s.width) return mask;
  const torch::Tensor whole = mask.expand({mask.size(0), s.channels, s.height, s.width});
  if (x.dim() == 4) return whole.permute({0, 2, 3, 1});
  return whole.reshape(x.sizes());
}

torch::Tensor dropped_next(const torch::Tensor& x, double p) {
  const Node* node = next_node();
  if (!node) return x * 1;
  return x * shaped(kept(*node, x), *node, x) / (1 - p);
}

// A key of the dispatcher that nobody else uses. While it is included, on one thread, calls of these operators come
// here first; all others fall through.
constexpr auto own_key = c10::DispatchKey::TESTING_ONLY_GenericMode;

torch::Tensor dropout(const torch::Tensor& x, double p, bool train) {
  const c10::impl::ExcludeDispatchKeyGuard torchs_own(own_key);
  return train && p > 0 ? dropped_next(x, p) : x;
}

// Stochastic depth draws a number per sample, and multiplies.
torch::Tensor& bernoulli_(torch::Tensor& self, double p, c10::optional<at::Generator>) {
  const c10::impl::ExcludeDispatchKeyGuard torchs_own(own_key);
  const at::NoGradGuard no_gradients;
  const Node* node = next_node();
  return self.copy_(node ? shaped(kept(*node, self), *node, self) : torch::rand_like(self).lt(p));
}

// Torch has 1/6 in single precision in these, whatever it is given.
torch::Tensor hard_sigmoid(const torch::Tensor& x) {
  const c10::impl::ExcludeDispatchKeyGuard torchs_own(own_key);
  return torch::relu6(x + 3) / 6;
}
torch::Tensor hard_swish(const torch::Tensor& x) {
  const c10::impl::ExcludeDispatchKeyGuard torchs_own(own_key);
  return x * torch::relu6(x + 3) / 6;
}
torch::Tensor& hard_sigmoid_(torch::Tensor& self) {
  const c10::impl::ExcludeDispatchKeyGuard torchs_own(own_key);
  return self.copy_(hard_sigmoid(self.clone()));
}
torch::Tensor& hard_swish_(torch::Tensor& self) {
  const c10::impl::ExcludeDispatchKeyGuard torchs_own(own_key);
  return self.copy_(hard_swish(self.clone()));
}

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, library) { library.fallback(torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(aten, TESTING_ONLY_GenericMode, library) {
  library.impl("dropout", dropout);
  library.impl("feature_dropout", dropout);
  library.impl("bernoulli_.float", bernoulli_);
  library.impl("hardsigmoid", hard_sigmoid);
  library.impl("hardsigmoid_", hard_sigmoid_);
  library.impl("hardswish", hard_swish);
  library.impl("hardswish_", hard_swish_);
}

}  // namespace

DropoutsOf::DropoutsOf(const Graph& graph, const std::vector<std::string>& nodes, const Draw& draw) {
  included_ = std::make_unique<c10::impl::IncludeDispatchKeyGuard>(own_key);
  waiting = std::make_unique<AskedFor>();
  waiting->draw = draw;
  for (const auto& name : nodes) {
    const Node* found = nullptr;
    for (const auto& node : graph.nodes())
      if (node.name == name) found = &node;
    waiting->nodes.push_back(found);
  }
}

DropoutsOf::~DropoutsOf() { waiting.reset(); }

}  // namespace tessera
