// One member of a stage: the boxes of its tile, and what it does in each step, forward and in Tessera's own reverse
// walk. What it keeps, when that is freed, and when values and gradients travel is decided here; the order of the
// steps, and what members have to agree on, is the executor's.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "tessera/base/meter.h"
#include "tessera/comm/communicator.h"
#include "tessera/comm/exchange.h"
#include "tessera/ops/kernel.h"
#include "tessera/plan/layout.h"
#include "tessera/plan/waits.h"
#include "tessera/program/program.h"
#include "tessera/runtime/store.h"

namespace tessera {

/// What is alive of one micro on one member between its forward and the end of its backward.
struct MemberState {
  PassInfo pass;
  int micro = 0;
  std::vector<Slab> values;                       ///< by value, all over its frame; data undefined where it was freed
  std::vector<std::vector<Slab>> gradients;       ///< by value: terms whose sum is the gradient, at most two
  std::vector<Saved> saved;                       ///< by step
  std::map<int, Movement> arriving;               ///< by value: margins, or the value from another stage, under way
  std::map<int, std::vector<Slab>> margins;       ///< of values that are thrown away and made again: what others sent
  std::map<int, std::unique_ptr<Stored>> stored;  ///< by value: those that are in the store, here or not

  /// A tensor that waits elsewhere, and where it belongs.
  struct Away {
    at::Tensor* place;
    std::unique_ptr<Stored> stored;
  };
  std::multimap<int, Away> away_gradients;      ///< by value: terms, and what is returning
  std::multimap<int, Away> away_margins;        ///< by value
  std::multimap<std::size_t, Away> away_saved;  ///< by step

  /// A gradient under way to this member: from neighbours (margins) or later stages.
  struct Returning {
    Movement movement;
    Slab gradient;
    bool margin = false;  ///< from neighbours
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

  /// A step of backward that waits for an agreement, or for its turn.
  struct Halfway {
    std::size_t step;
    std::vector<Slab> inputs;
    BackwardArgs args;
    std::vector<Away> away = {};  ///< of the gradients, and of what lies between
  };
  std::unique_ptr<Halfway> halfway = nullptr;
};

/// What all members of a stage on this rank have in common. All must outlive the members.
struct StageWork {
  const Graph& graph;
  const Program& program;
  std::vector<std::unique_ptr<Kernel>> kernels;  ///< by step
  const Plan& plan;
  const Layout& layout;
  Meter* meter = nullptr;
  /// Whether somebody might be waited for in the middle of backward, so that weight gradients are put off until then.
  bool fills_waits = false, agrees_on_norms = false;
  int kept = -1;                 ///< see Executor::keep_for_answer()
  bool turns = false;            ///< the rank has several members
  Store* store = nullptr;        ///< where things wait that do not stay; null: all stay
  const Waits* waits = nullptr;  ///< who stays; set with a store
  /// Memory may be taken away from a value while its margins are under way.
  bool apart() const { return turns && store != nullptr; }
};

/// Whether a step looks at more of an input than the member makes itself.
bool looks_beyond(const Graph& graph, const Layout& layout, const Plan::Place& place, const Step& step,
                  std::size_t input);

/// Belongs to one thread.
class Member {
 public:
  /// `places`: the numbers of places as ranks, this one's among them; null where nothing travels. `ordinal`: which of
  /// the rank's members it is.
  Member(const StageWork& work, const Plan::Place& place, Communicator* places, std::size_t ordinal);

  void expect_values(MemberState& state, int micro, const at::TensorOptions& options);
  void expect_gradients(MemberState& state);

  void begin_forward(MemberState& state, const at::Tensor& images, PassInfo pass);
  /// What the member brings to the agreement of a step: comes before forward_step(), which gets what came of it.
  Offer offer(MemberState& state, std::size_t s);
  void forward_step(MemberState& state, std::size_t s, at::Tensor agreed, int phase);
  void end_forward(MemberState& state) const;

  void begin_backward(MemberState& state);
  /// The step's gradients arrive, its weights get theirs, and what ranks have to agree on is offered. Comes before
  /// backward_step(), for every step.
  Offer offer_gradient(MemberState& state, std::size_t s, bool defer_weights);
  void backward_step(MemberState& state, std::size_t s, bool defer_weights, at::Tensor agreed);
  /// The member's turn in a phase begins soon: what it will look at may be on its way. With a store.
  void look_ahead(MemberState& state, int phase) const;
  /// Its turn in a phase ends: what does not stay leaves, or is let go of if it can be had again at little cost. With a
  /// store.
  void put_down(MemberState& state, int phase) const;
  /// Does the oldest weight gradient that was put off; false where there is none.
  bool fill_wait(MemberState& state);

  /// What the member owns of a value.
  Slab owned(MemberState& state, int v) const;
  bool owns(int v) const { return !boxes(v).owned.empty(); }

  /// Frees what has arrived where it was sent.
  void let_go_of_sent();
  /// Waits until everything this member has sent is gone.
  void flush();

  const Plan::Place& place() const { return place_; }
  const Box& image_box() const { return boxes_[0].held; }
  const Box& owned_box_of(int v) const { return boxes(v).owned; }
  /// The places that this member sends to or receives from.
  std::set<Rank> peers() const;

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

  const std::vector<Step>& steps() const { return work_.program.steps; }
  const Boxes& boxes(int v) const { return boxes_[static_cast<std::size_t>(v)]; }
  bool is_loss(int v) const { return v + 1 == static_cast<int>(work_.graph.nodes().size()); }
  static Slab& value(MemberState& state, int v) { return state.values[static_cast<std::size_t>(v)]; }
  /// Whoever has no part of the output may still have to agree with those that have.
  bool runs(const Step& step) const { return step.agreement != Agreement::none || !boxes(step.output).made.empty(); }
  Box owned_box(const Step& step) const { return boxes(step.reduces ? step.inputs[0] : step.output).owned; }
  Tag tag(const MemberState& state, const Link& link, bool backward) const;

  /// Memory for a value with its margin; zeros where it reaches outside the image.
  Slab new_frame(int v, const at::TensorOptions& options) const;
  /// Runs `make(into)` with the memory where the value belongs; puts the value there, all over its frame.
  template <class Make>
  void make_framed(MemberState& state, int v, const Make& make) const;
  void exchange_margin(MemberState& state, int v) const;
  void send_away(MemberState& state, int v);
  /// Waits for what is under way to this value.
  void settle(MemberState& state, int v) const;
  void settle_inputs(MemberState& state, std::size_t s) const;
  void release(MemberState& state, int v) const;
  /// Puts what came from others around a value that is here.
  void fill_margins(MemberState& state, int v) const;
  /// Puts a value away if it does not stay.
  void rest(MemberState& state, int v, int phase) const;
  bool stays(Idle thing, int id, int phase, const at::Tensor& data) const;
  /// Brings back what is away.
  void wake_gradients(MemberState& state, int v) const;
  void wake_saved(MemberState& state, std::size_t s) const;
  /// Nothing is left of it.
  void forget(MemberState& state, int v) const;
  void prefetch(MemberState& state, int v) const;
  /// Makes a value again that was thrown away in forward.
  void restore(MemberState& state, int v) const;
  std::vector<Slab> gather(const MemberState& state, const Step& step) const;

  /// What backward of a step looks at.
  void restore_for(MemberState& state, const Step& step) const;
  void weigh(MemberState& state, std::size_t s, bool defer_weights);
  /// The output's gradient in the form that the step's kernel takes, all over the box that was made.
  std::vector<Slab> take_gradients(MemberState& state, const Step& step, const Kernel& kernel, bool defer_weights);
  /// What the step's kernel adds to its inputs' gradients while it writes them.
  std::vector<Slab> take_addends(MemberState& state, const Step& step, const Kernel& kernel) const;
  void accumulate(MemberState& state, int v, Slab term) const;
  /// All terms that reach beyond `inside` in one that covers `box`.
  Slab take_merged(MemberState& state, int v, const Box& inside, const Box& box) const;
  /// Sends gradients back to where the value came from.
  void send_back(MemberState& state, int v);

  const StageWork& work_;
  const Plan::Place place_;
  Communicator* const places_;
  const std::size_t ordinal_;
  std::vector<Boxes> boxes_;                // by value
  std::vector<std::vector<bool>> waits_;    // by step and input: whether it looks beyond what is made here
  std::vector<bool> put_off_;               // by step: its weight gradient waits until gradients have left
  std::map<int, Link> margins_, arrivals_;  // by value
  std::multimap<int, Link> departures_;     // by value
  std::vector<Movement> outbox_;            // values and gradients on their way to other stages
};

}  // namespace tessera
