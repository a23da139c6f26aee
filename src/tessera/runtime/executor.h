// Runs the steps of one stage on one of its members: forward, and Tessera's own reverse walk. It decides what is kept
// and when it is freed, and when values and gradients travel; the autograd engine has no part in it.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "tessera/base/meter.h"
#include "tessera/comm/communicator.h"
#include "tessera/comm/exchange.h"
#include "tessera/ops/kernel.h"
#include "tessera/plan/layout.h"
#include "tessera/program/program.h"
#include "tessera/runtime/parameters.h"

namespace tessera {

/// What is alive of one micro between its forward and the end of its backward.
struct MicroState {
  PassInfo pass;
  int micro = 0;
  std::vector<Slab> values;                  ///< by value, all over its frame; data undefined where it was freed
  std::vector<std::vector<Slab>> gradients;  ///< by value: terms whose sum is the gradient, at most two
  std::vector<Saved> saved;                  ///< by step
  std::map<int, Movement> arriving;          ///< by value: margins, or the value from another stage, under way
  std::map<int, std::vector<Slab>> margins;  ///< of values that are thrown away and made again: what others sent

  /// A gradient under way to this member: from neighbours (margins) or later stages.
  struct Returning {
    Movement movement;
    Slab gradient;
  };
  std::multimap<int, Returning> returning;  ///< by value
  bool expects_gradients = false;

  /// What a weight gradient that was put off looks at.
  struct Deferred {
    std::size_t step;
    std::vector<Slab> inputs, gradients;
    Saved saved;
  };
  std::vector<Deferred> deferred;  ///< the oldest first
};

/// Where a stage's member stands among the others. All must outlive the executor.
struct Wiring {
  const Plan& plan;
  const Layout& layout;
  Plan::Place place;
  Communicator* pipeline = nullptr;  ///< the ranks of the replica; may be null where nothing travels
  Communicator* norm = nullptr;      ///< ranks whose samples and tiles are normalised together; null: alone
  Communicator* tiles = nullptr;     ///< ranks that hold tiles of the same samples; null: alone
  Meter* meter = nullptr;
};

/// Belongs to one thread. Several micros may be alive at once, each with its own state.
class Executor {
 public:
  /// Called when the gradients of all parameters from this node on are complete, as far as one micro goes.
  using WeightsDone = std::function<void(int complete_from)>;

  /// The graph must outlive the executor.
  Executor(const Graph& graph, const Parameters& parameters, const Wiring& wiring, Recompute recompute);

  /// Posts the receives of what other stages send for a micro's forward, or backward. May be called ahead of time;
  /// otherwise forward() and backward() do it.
  void expect_values(MicroState& state, int micro, const at::TensorOptions& options);
  void expect_gradients(MicroState& state);

  /// Runs the stage on a micro; returns the sum of its samples' losses on this member, one double where the losses are:
  /// looking at it makes the host wait for a GPU. Undefined where the loss is not made. `images` covers image_box(),
  /// and is undefined where the stage does not read them.
  at::Tensor forward(MicroState& state, int micro, const at::Tensor& images, PassInfo pass);
  /// After a forward() with pass.evaluating, in place of backward(): what the network says of the micro. Frees the
  /// state.
  struct Answer {
    Slab logits, losses;  ///< what this member owns of them; undefined where it does not make the loss
    Slab kept;            ///< what it owns of the value of keep_for_answer(); undefined where it owns nothing of it
  };
  /// A value, made by this stage, that answers are to have, too.
  void keep_for_answer(Value v);
  Answer take_answer(MicroState& state);
  /// Adds the gradient of (sum of the micro's losses)/pass.loss_terms to the parameters' gradients; frees the state.
  /// With `defer_weights` it leaves what weight_gradients() needs.
  void backward(MicroState& state, bool defer_weights = false, const WeightsDone& done = {});
  void weight_gradients(MicroState& state, const WeightsDone& done = {});
  /// Waits until everything this member has sent is gone. At the end of a step.
  void flush();

  /// The part of the images that this member reads; empty: none.
  const Box& image_box() const { return boxes_[0].held; }
  /// The part of the loss that this member makes; empty: none.
  Box loss_box() const;
  bool makes_loss() const { return !loss_box().empty(); }
  /// The ranks of the pipeline that this member sends to or receives from.
  std::set<Rank> peers() const;
  const Program& program() const { return program_; }

 private:
  /// This member's boxes of a value, out of the layout.
  struct Boxes {
    Box owned, made, held, frame;
    Box inside;  ///< of made: what no other member needs; empty where that is little
  };
  struct Link {
    Exchange exchange;
    int transfer;
  };

  const Boxes& boxes(int v) const { return boxes_[static_cast<std::size_t>(v)]; }
  Slab& value(MicroState& state, int v) const { return state.values[static_cast<std::size_t>(v)]; }
  /// Whoever has no part of the output may still have to agree with those that have.
  bool runs(const Step& step) const { return step.agreement != Agreement::none || !boxes(step.output).made.empty(); }
  Communicator* group_of(const Step& step) const {
    return step.agreement == Agreement::norm ? wiring_.norm : wiring_.tiles;
  }
  /// What the step's group makes of an offer. `meanwhile` is work for the time that this takes.
  at::Tensor agree(const Step& step, const Offer& offer, const std::function<void()>& meanwhile = {}) const;
  Box owned_box(const Step& step) const { return boxes(step.reduces ? step.inputs[0] : step.output).owned; }
  Tag tag(const MicroState& state, const Link& link, bool backward) const;

  /// Memory for a value with its margin; zeros where it reaches outside the image.
  Slab new_frame(int v, const at::TensorOptions& options) const;
  void forward_step(MicroState& state, std::size_t s);
  /// Runs `make(into)` with the memory where the value belongs; puts the value there, all over its frame.
  template <class Make>
  void make_framed(MicroState& state, int v, const Make& make) const;
  void exchange_margin(MicroState& state, int v) const;
  void send_away(MicroState& state, int v);
  /// Waits for what is under way to this value.
  void settle(MicroState& state, int v) const;
  void release(MicroState& state, int v) const;
  /// Frees what has arrived where it was sent.
  void let_go_of_sent();
  /// Makes a value again that was thrown away in forward.
  void restore(MicroState& state, int v);
  std::vector<Slab> gather(const MicroState& state, const Step& step) const;

  void backward_step(MicroState& state, std::size_t s, bool defer_weights);
  /// Does the oldest weight gradient that was put off; false where there is none.
  bool fill_wait(MicroState& state);
  /// The output's gradient in the form that the step's kernel takes, all over the box that was made.
  std::vector<Slab> take_gradients(MicroState& state, const Step& step, const Kernel& kernel, bool defer_weights);
  /// What the step's kernel adds to its inputs' gradients while it writes them.
  std::vector<Slab> take_addends(MicroState& state, const Step& step, const Kernel& kernel) const;
  void accumulate(MicroState& state, int v, Slab term) const;
  /// All terms that reach beyond `inside` in one that covers `box`.
  Slab take_merged(MicroState& state, int v, const Box& inside, const Box& box) const;
  /// Sends gradients back to where the value came from.
  void send_back(MicroState& state, int v);

  const Graph& graph_;
  const Wiring wiring_;
  Program program_;
  std::vector<std::unique_ptr<Kernel>> kernels_;  // by step
  std::vector<Boxes> boxes_;                      // by value
  std::vector<std::vector<bool>> waits_;          // by step and input: whether it looks beyond what is made here
  std::map<int, Link> margins_, arrivals_;        // by value
  std::multimap<int, Link> departures_;           // by value
  std::vector<Movement> outbox_;                  // values and gradients on their way to other stages
  int kept_ = -1;                                 // see keep_for_answer()
};

}  // namespace tessera
