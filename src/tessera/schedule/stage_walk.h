// What a rank holds of one stage while it goes through its actions: runtime/executor.cpp with memory in place of
// tensors.
#pragma once

#include "tessera/schedule/member_walk.h"
#include "tessera/schedule/schedule.h"

namespace tessera {

/// Goes through the phases of a stage, member by member. All arguments but the places must outlive it.
class StageWalk {
 public:
  /// `places`: the rank's members of the stage, in order.
  StageWalk(const Graph& graph, const Plan& plan, const Layout& layout, const std::vector<Plan::Place>& places,
            const FootprintOptions& options, int threads, int micros_alive, Ledger& ledger, Buffers& buffers);

  /// Memory for what will arrive for an action.
  void expect(const Action& action);
  void run(const Action& action);
  /// Of a micro whose backward does not come.
  void forget(const Action& action);
  const Waits& waits() const { return waits_; }

 private:
  void forward(std::vector<MemberMemory>& micro);
  void backward(std::vector<MemberMemory>& micro, bool defer_weights);
  bool alone() const { return members_.size() == 1; }

  const Program program_;
  Waits waits_;
  const StageMemory stage_;
  std::vector<MemberWalk> members_;
  std::vector<std::vector<MemberMemory>> micros_;
};

}  // namespace tessera
