// What one step of a program does to tensors. A kernel is made once for a step, holds the step's parameters, and keeps
// nothing of a pass: what backward wants of forward goes into the caller's `Saved`. No kernel waits for another rank:
// what ranks must agree on it offers, and gets back when they have.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tessera/ops/slab.h"
#include "tessera/program/program.h"

namespace tessera {

/// Tensors of a node in the order of its parameter specs. What a step adds to them: gradients, and for running
/// statistics the new shares (see StatisticsShare). They are added to, never overwritten.
struct NodeParameters {
  std::vector<at::Tensor> values;
  std::vector<at::Tensor> gradients;
};

/// How a micro enters the running statistics. Sequential training lets them decay once per micro, in the order of the
/// micros; so after a step of n micros they are d^n·old + Σ d^(n-1-i)·(1-d)·new_i, whoever runs micro i, and when. Each
/// rank adds its terms to the accumulators, which are summed over ranks like gradients.
struct StatisticsShare {
  std::int64_t micro = 0, micros = 1;  ///< i and n
  double share = 1;                    ///< of this rank among those that have the same statistics
};

/// What all kernels of a pass may know of the run.
struct PassInfo {
  std::uint64_t seed = 0;
  std::int64_t step = 0;
  /// What the loss is a mean of: the samples of the whole batch, not of the micro, or its pixels that have a label,
  /// each counted as its class is. None: the loss is 0.
  double loss_terms = 1;
  /// Of the rank's samples of the micro: [samples], int64. Where pixels have labels, all over the box of the loss that
  /// the rank makes: [samples, rows, columns], int64 or uint8.
  at::Tensor labels;
  /// Where the micro's samples begin in the whole batch. Boxes count from there.
  std::int64_t first_sample = 0;
  StatisticsShare statistics = {};
  at::TensorOptions options = at::kFloat;  ///< of activations
  /// The network as it is used, not trained: running statistics, nothing dropped, nothing kept for backward.
  bool evaluating = false;
  double terms_per_sample = 1;  ///< loss_terms over the samples of the whole batch
  /// What differs from step to step, on the device: kernels that are recorded (KernelWay::records) find it there, and
  /// must not look at step, loss_terms and terms_per_sample. Undefined: nobody records.
  struct There {
    at::Tensor step;              ///< one int64
    at::Tensor loss_share;        ///< one double: 1/loss_terms
    at::Tensor terms_per_sample;  ///< one double
  };
  There there = {};
};

using Saved = std::vector<at::Tensor>;

/// What this rank brings to an agreement. The group is the step's (Step::agreement). Undefined data: there is nothing
/// to agree on in this pass, on any rank of the group.
struct Offer {
  enum class How {
    sum,     ///< all get the sum of what the ranks bring
    gather,  ///< all get what each rank brings, one row per rank
  };
  at::Tensor data;
  How how = How::sum;
};
/// What a rank without company agrees on with itself.
at::Tensor agreed_alone(const Offer& offer);

struct ForwardArgs {
  std::span<const Slab> inputs;
  Box out;    ///< the box of the output to make; empty where the rank only takes part in the agreement
  Box owned;  ///< the part of it that no other rank owns; of the input where the operation reduces positions
  const PassInfo& pass;
  Saved& saved;
  /// Memory for `out`, a part of something larger maybe. A kernel may ignore it and return memory of its own.
  Slab into = {};
  /// What lies around `inside` is needed elsewhere: a kernel that can makes it first, in `into`, and says so. The
  /// messages are then on their way while it makes the inside.
  Box inside = {};
  std::function<void()> edges_ready = {};
  at::Tensor agreed = {};  ///< what came of offer()

  /// `into`, or new memory of this type.
  Slab place(std::int64_t channels, const at::TensorOptions& options) const {
    return into.defined() ? into : empty_slab(out, channels, options);
  }
};

struct BackwardArgs {
  /// Data is there for the inputs that the step needs; all have their boxes.
  std::span<const Slab> inputs;
  Slab output;  ///< data only if the step needs it
  /// The output's gradient: the sum of these, each all over the box that forward made. Two only if the kernel
  /// takes_gradient_terms(); none where the rank has no part of the output and only takes part in the agreement. The
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
  at::Tensor agreed = {};  ///< what came of offer_gradient()
  Saved between = {};      ///< what offer_gradient() leaves for input_gradients()
};

/// Thread-safe as long as no two threads run weight gradients or update running statistics at once: a rank is a thread.
class Kernel {
 public:
  virtual ~Kernel() = default;

  /// Comes before forward(), on every rank of the group, if the step has an agreement.
  virtual Offer offer(const ForwardArgs& args) { return {}; }
  virtual Slab forward(const ForwardArgs& args) = 0;
  /// Makes the output of an earlier forward pass again from the same inputs and what was saved, without side effects.
  /// By default forward() does it, with what it saves thrown away.
  virtual Slab recompute(const ForwardArgs& args);

  /// Comes before input_gradients(), on every rank of the group, if the step has an agreement.
  virtual Offer offer_gradient(BackwardArgs& args) { return {}; }
  /// One slab per input, undefined where not wanted. A slab may cover less than the input's box: the rest is zero.
  virtual std::vector<Slab> input_gradients(BackwardArgs& args) = 0;
  /// Adds to the gradients of the node's parameters. May be called after input_gradients, with the same arguments.
  virtual void weight_gradients(BackwardArgs& args) {}

  /// Finds out which of its ways to make such an output box is the fastest, where it has several, and nobody has yet
  /// (ops/way_choices.h). `gradients`: also for backward; `of_input`: the first input wants a gradient.
  struct Trial {
    Box out;
    bool gradients = true, of_input = true;
    /// The most bytes that some work has at a time, beside what was there before.
    std::function<double(const std::function<void()>& work)> peak_bytes;
  };
  virtual void try_ways(const Trial& trial) {}

  /// For an output box and a first input that covers `in`, where it is not what the operation says
  /// (Operation::workspace). Parameters may have no data.
  virtual std::optional<Workspace> workspace(const Box& out, const Box& in) const { return std::nullopt; }

  virtual bool has_weights() const { return false; }
  virtual bool takes_gradient_terms() const { return false; }
  virtual bool takes_addend(std::size_t input) const { return false; }
  /// Whether input_gradients() has something to do even where nobody wants a gradient: it adds to parameters.
  virtual bool runs_without_wanted() const { return false; }

  /// As KernelWay::records.
  bool records() const { return records_; }

 private:
  friend class Kernels;
  bool records_ = false;
};

/// What a kernel is made for. All must outlive the kernel.
struct KernelRequest {
  const Graph& graph;
  const Step& step;
  std::function<NodeParameters(const Node&)> parameters;
  at::TensorOptions activations;  ///< device and type

  const Node& node() const { return graph.node({step.node}); }
  std::vector<Shape> input_shapes() const { return graph.input_shapes(node()); }
  NodeParameters parameters_of_node() const { return parameters(node()); }
  bool on_gpu() const { return activations.device().is_cuda(); }
  /// The operation as what its kind says that it is.
  template <class Op>
  const Op& op() const {
    return dynamic_cast<const Op&>(*node().op);
  }
};

/// One way to run an operation.
struct KernelWay {
  std::string name;  ///< "loops", "cuda", ...
  std::function<bool(const KernelRequest&)> accepts;
  std::function<std::unique_ptr<Kernel>(const KernelRequest&)> make;
  /// What its kernels start on a GPU may be recorded and played in later steps (runtime/recording.h): they never wait
  /// for the GPU, and take what differs from step to step from PassInfo::there.
  bool records = false;
};

/// The ways of every kind of operation; of those that accept a step, the one that was added first takes it.
class Kernels {
 public:
  void add(std::string_view kind, KernelWay way);
  /// A way that accepts everything.
  void add(std::string_view kind, std::function<std::unique_ptr<Kernel>(const KernelRequest&)> make);
  /// Throws Error if nothing accepts the step.
  std::unique_ptr<Kernel> make(const KernelRequest& request) const;

 private:
  friend Kernels& kernels();
  std::vector<std::pair<std::string, KernelWay>> ways_;
};

/// Point-wise steps, whatever their nodes are, are of this kind.
inline constexpr std::string_view pointwise_kind = "pointwise";

/// Those that Tessera knows, and those that a program has registered before it runs anything.
Kernels& kernels();

/// For operations outside of Tessera, at namespace scope: const RegisterKernel mine("my_operation", make_it);
struct RegisterKernel {
  template <class Make>
  RegisterKernel(std::string_view kind, Make make) {
    kernels().add(kind, std::move(make));
  }
};

}  // namespace tessera
