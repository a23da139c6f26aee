// Runs the steps of one stage on one rank, forward and back, for all members of the stage that the rank is. With one
// member a rank has company only elsewhere, and waits for it. With several (turns) it works through them one after the
// other, phase by phase:
//
//     phase 1                 | agreement |  phase 2             | margins |  phase 3
//     tile 0: conv, moments   |           |  tile 0: norm, relu  |         |  tile 0: conv ...
//     tile 1: conv, moments   |   sums    |  tile 1: norm, relu  | copies  |  tile 1: conv ...
//     tile 2: conv, moments   |           |  tile 2: norm, relu  |         |  tile 2: conv ...
//
// Within a phase no tile looks at what another one makes in the same phase, so their order does not matter and only the
// one at work needs working memory.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <vector>

#include "tessera/comm/places/post_office.h"
#include "tessera/runtime/member.h"
#include "tessera/runtime/parameters.h"

namespace tessera {

/// What is alive of one micro between its forward and the end of its backward.
struct MicroState {
  std::vector<MemberState> members;
};

/// Where a rank stands among the others. All must outlive the executor.
struct Wiring {
  const Plan& plan;
  const Layout& layout;
  Plan::Place place;                 ///< the rank's first one of the direction
  Communicator* pipeline = nullptr;  ///< the ranks of the replica; may be null where nothing travels
  Communicator* norm = nullptr;      ///< ranks whose samples and tiles are normalised together; null: alone
  Communicator* tiles = nullptr;     ///< ranks that hold tiles of the same samples; null: alone
  Meter* meter = nullptr;
  Store* store = nullptr;  ///< where things wait that do not stay on the device; null: all stay
  double room = 0;         ///< with a store: so many bytes may wait on the device
  int micros_alive = 1;    ///< at most, between their forward and the end of their backward
};

/// Belongs to one thread. Several micros may be alive at once, each with its own state.
class Executor {
 public:
  /// Called when the gradients of all parameters from this node on are complete, as far as one micro goes.
  using WeightsDone = std::function<void(int complete_from)>;
  /// The images of a micro in a box, [samples, channels, rows, columns].
  using ImagesOf = std::function<at::Tensor(const Box& box)>;

  /// The graph must outlive the executor.
  Executor(const Graph& graph, const Parameters& parameters, const Wiring& wiring, Recompute recompute);

  /// Posts the receives of what other stages send for a micro's forward, or backward. May be called ahead of time;
  /// otherwise forward() and backward() do it.
  void expect_values(MicroState& state, int micro, const at::TensorOptions& options);
  void expect_gradients(MicroState& state);

  /// What the network says of a micro, when evaluating: all that this rank owns of it, or a member's part.
  struct Answer {
    Slab logits, losses;  ///< undefined where the loss is not made
    Slab kept;            ///< the value of keep_for_answer(); undefined where nothing of it is owned
    at::Tensor labels;    ///< of a member's part, where pixels have labels
  };
  using TakePart = std::function<void(const Answer&)>;

  /// Runs the stage on a micro; returns the sum of its samples' losses on this rank, one double where the losses are:
  /// looking at it makes the host wait for a GPU. Undefined where the loss is not made. `images` is asked for each of
  /// image_boxes() once, in their order, when the turn of the tile that looks at it begins. With `take`, which is for
  /// pass.evaluating, and where the loss is made, each member's answer is taken at the end of its last turn, and
  /// nothing is returned or left in the state.
  at::Tensor forward(MicroState& state, int micro, const ImagesOf& images, const PassInfo& pass,
                     const TakePart& take = {});
  /// A value, made by this stage, that answers are to have, too.
  void keep_for_answer(Value v);
  /// After a forward() with pass.evaluating, in place of backward(). Frees the state.
  Answer take_answer(MicroState& state);
  /// Adds the gradient of (sum of the micro's losses)/pass.loss_terms to the parameters' gradients; frees the state.
  /// With `defer_weights` it leaves what weight_gradients() needs.
  void backward(MicroState& state, bool defer_weights = false, const WeightsDone& done = {});
  void weight_gradients(MicroState& state, const WeightsDone& done = {});
  /// Waits until everything this rank has sent is gone. At the end of a step.
  void flush();

  /// The parts of the images that this rank reads, one for each member that does, in the order of their turns.
  std::vector<Box> image_boxes() const;
  /// The part of the loss that this rank makes; empty: none.
  Box loss_box() const;
  bool makes_loss() const { return !loss_box().empty(); }
  /// The ranks of the pipeline that this rank sends to or receives from.
  std::set<Rank> peers() const;
  const Program& program() const { return program_; }
  /// Whether all kernels may be recorded: see KernelWay::records.
  bool records() const;

 private:
  std::size_t members() const { return members_.size(); }
  const std::vector<Step>& steps() const { return program_.steps; }
  /// What the step's group makes of what this rank's members offer. `meanwhile` is work for the time that this takes.
  at::Tensor agree(const Step& step, std::vector<Offer> offers, const std::function<void()>& meanwhile = {}) const;
  void take_part(std::size_t m, MemberState& state, const TakePart& take);
  void complete(const MicroState& state, std::size_t s, const WeightsDone& done) const;
  /// A box of what all members have, in one piece.
  Slab joined(MicroState& state, int v) const;
  Box owned_box(int v) const;

  const Graph& graph_;
  const Wiring wiring_;
  const Program program_;
  StageWork work_;
  std::unique_ptr<PostOffice> office_;                  // null where every rank has one place
  std::vector<std::unique_ptr<Communicator>> windows_;  // by member, with an office
  std::vector<Member> members_;
  std::unique_ptr<Waits> waits_;
};

}  // namespace tessera
