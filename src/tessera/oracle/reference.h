// What every operation is in torch's words. The oracle trains with these, and shares nothing else with the kernels.
#pragma once

#include <torch/types.h>

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/random.h"
#include "tessera/graph/graph.h"

namespace tessera {

/// What a reference is given: whole values, one micro at a time.
struct ReferenceArgs {
  const Node& node;
  const std::vector<torch::Tensor>& inputs;
  std::function<torch::Tensor(const std::string& suffix)> parameter;
  torch::Tensor labels;
  bool evaluating = false;
  // Of the random numbers.
  std::uint64_t seed = 0;
  std::int64_t step = 0, first_sample = 0;
  /// Of a loss: what it is to be divided by, over the samples of the whole batch.
  double terms_per_sample = 1;

  const torch::Tensor& x() const { return inputs[0]; }
  /// The parameter if it is there, otherwise undefined.
  torch::Tensor parameter_if(bool there, const std::string& suffix) const {
    return there ? parameter(suffix) : torch::Tensor();
  }
  template <class Op>
  const Op& op() const {
    return dynamic_cast<const Op&>(*node.op);
  }
  /// The stream that the node's random numbers come from.
  RandomStream random() const { return RandomStream(seed ^ stream_of(node.name), static_cast<std::uint64_t>(step)); }
};

/// Which elements, channels or samples of its input a dropout keeps: of x's shape, or 1 along what is dropped as a
/// whole.
torch::Tensor kept_by(const ReferenceArgs& dropout);

using Reference = std::function<torch::Tensor(const ReferenceArgs&)>;

/// By the kind of operation: those that Tessera knows, and those that a program has registered.
std::map<std::string, Reference, std::less<>>& references();

/// For operations outside of Tessera, at namespace scope: const RegisterReference mine("my_operation", compute_it);
struct RegisterReference {
  RegisterReference(std::string_view kind, Reference reference) {
    references().insert_or_assign(std::string(kind), std::move(reference));
  }
};

}  // namespace tessera
