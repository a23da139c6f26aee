// What one step of a network does to tensors. A kernel is made once for a step, holds the step's parameters, and keeps
// nothing of a pass: what backward wants of forward goes into the caller's `Saved`.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tessera/base/meter.h"
#include "tessera/comm/communicator.h"
#include "tessera/graph/graph.h"
#include "tessera/ops/slab.h"

namespace tessera {

/// Tensors of a node in the order of its parameter specs. What a step adds to them: gradients, and for running
/// statistics the new shares (see StatisticsShare). They are added to, never overwritten.
struct NodeParameters {
  std::vector<at::Tensor> values;
  std::vector<at::Tensor> gradients;
};

/// How a micro enters the running statistics. Sequential training lets them decay once a micro, in the order of the
/// micros; so after a step of n micros they are d^n·old + Σ d^(n-1-i)·(1-d)·new_i, whoever runs micro i, and when. Each
/// rank adds its terms to the accumulators, which are summed over ranks like gradients.
struct StatisticsShare {
  std::int64_t micro = 0, micros = 1;  ///< i and n
  double share = 1;                    ///< of this rank among those that have the same statistics
};

/// Who a kernel has to agree with. Null: alone.
struct KernelGroups {
  Meter* meter = nullptr;         ///< counts the time that it takes
  Communicator* norm = nullptr;   ///< ranks whose samples and tiles are normalised together
  Communicator* tiles = nullptr;  ///< ranks that hold tiles of the same samples; the first has the upper left one
};

/// What all kernels of a pass may know of the run.
struct PassInfo {
  std::uint64_t seed = 0;
  std::int64_t step = 0;
  /// What the loss is a mean of: the samples of the whole batch, not of the micro, or its pixels that have a label.
  /// None: the loss is 0.
  std::int64_t loss_terms = 1;
  /// Of the rank's samples of the micro: [samples], int64. Where pixels have labels, all over the box of the loss that
  /// the rank makes: [samples, rows, columns], int64 or uint8.
  at::Tensor labels;
  /// Where the micro's samples begin in the whole batch. Boxes count from there.
  std::int64_t first_sample = 0;
  StatisticsShare statistics = {};
  at::TensorOptions options = at::kFloat;  ///< of activations
  KernelGroups groups = {};
  /// The network as it is used, not trained: running statistics, nothing dropped, nothing kept for backward.
  bool evaluating = false;
};

using Saved = std::vector<at::Tensor>;

struct ForwardArgs {
  std::span<const Slab> inputs;
  Box out;    ///< the box of the output to make
  Box owned;  ///< the part of it that no other rank owns; of the input where the operation reduces positions
  const PassInfo& pass;
  Saved& saved;
  /// Memory for `out`, a part of something larger maybe. A kernel may ignore it and return memory of its own.
  Slab into = {};
  /// What lies around `inside` is needed elsewhere: a kernel that can makes it first, in `into`, and says so. The
  /// messages are then on their way while it makes the inside.
  Box inside = {};
  std::function<void()> edges_ready = {};
};

struct BackwardArgs {
  /// Data is there for the inputs that needs() names; all have their boxes.
  std::span<const Slab> inputs;
  Slab output;  ///< data only if needs() names it
  /// The output's gradient: the sum of these, each all over the box that forward made. Two only if the kernel
  /// takes_gradient_terms(); none where the output belongs to another rank and the operation reduces positions. The
  /// kernel may overwrite those whose tensor nobody else holds.
  std::vector<Slab> gradients;
  /// Which inputs want a gradient.
  std::vector<bool> wanted;
  /// By input, only where the kernel takes_addend(): what to add to the input's gradient on the way. It may be
  /// overwritten like the gradients.
  std::vector<Slab> addends;
  Box owned;  ///< as in forward
  const PassInfo& pass;
  Saved& saved;
  /// Does a piece of other work while messages are under way; false where there is none left.
  std::function<bool()> meanwhile = {};
};

/// Kernel::recompute() for kernels whose forward has no other side effect than what it saves.
template <class K>
Slab forward_again(K& kernel, const ForwardArgs& args) {
  Saved scratch;
  return kernel.forward({args.inputs, args.out, args.owned, args.pass, scratch, args.into});
}

/// What backward wants to see again.
struct BackwardNeeds {
  std::vector<bool> inputs;
  bool output = false;
};

/// Thread-safe as long as no two threads run weight gradients or update running statistics at once: a rank is a thread.
class Kernel {
 public:
  virtual ~Kernel() = default;

  virtual Slab forward(const ForwardArgs& args) = 0;
  /// Makes the output of an earlier forward pass again from the same inputs and what was saved, without side effects.
  /// Only kernels that are cheap to repeat offer it.
  virtual Slab recompute(const ForwardArgs& args);
  /// One slab an input, undefined where not wanted. A slab may cover less than the input's box: the rest is zero.
  virtual std::vector<Slab> input_gradients(BackwardArgs& args) = 0;
  /// Adds to the gradients of the node's parameters. May be called after input_gradients, with the same arguments.
  virtual void weight_gradients(BackwardArgs& args) {}

  virtual BackwardNeeds needs() const = 0;
  virtual bool has_weights() const { return false; }
  virtual bool takes_gradient_terms() const { return false; }
  virtual bool takes_addend(std::size_t input) const { return false; }
};

/// The kernel of one node, for every operation that is not point-wise (those are fused: see pointwise.h). Throws for an
/// operation that has none.
std::unique_ptr<Kernel> make_kernel(const Graph& graph, const Node& node, NodeParameters parameters);

// One maker an operation, each in the file of its name.
std::unique_ptr<Kernel> make_conv_kernel(const Conv& op, const Shape& input, NodeParameters parameters);
std::unique_ptr<Kernel> make_conv_transpose_kernel(const ConvTranspose& op, const Shape& input,
                                                   NodeParameters parameters);
std::unique_ptr<Kernel> make_upsample_kernel(const Upsample& op, const Shape& input);
std::unique_ptr<Kernel> make_max_pool_kernel(const MaxPool& op, const Shape& input);
std::unique_ptr<Kernel> make_avg_pool_kernel(const AvgPool& op, const Shape& input);
std::unique_ptr<Kernel> make_global_avg_pool_kernel(const Shape& input);
std::unique_ptr<Kernel> make_concat_kernel(std::vector<Shape> inputs);
std::unique_ptr<Kernel> make_dropout_kernel(const Dropout& op, const Shape& input, const std::string& name);
std::unique_ptr<Kernel> make_flatten_kernel(const Shape& input);
std::unique_ptr<Kernel> make_linear_kernel(const Linear& op, NodeParameters parameters);
std::unique_ptr<Kernel> make_cross_entropy_kernel(const CrossEntropy& op);

}  // namespace tessera
