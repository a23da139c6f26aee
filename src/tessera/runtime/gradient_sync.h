// Adds up what the copies of a stage's parameters have gathered in a step: gradients, and shares of the statistics.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "tessera/comm/communicator.h"
#include "tessera/plan/plan.h"

namespace tessera {

/// Works on one flat tensor, in buckets of a fixed size: ranks need not be equally far. Backward completes the tensor
/// from its end; a bucket is under way as soon as it is complete, while backward goes on. All copies get the same bits.
class GradientSync {
 public:
  /// `copies`: the ranks that hold these parameters; null when there is one only. `node`: a number that ranks of one
  /// node share, for GradSync::hierarchical. Collective over the copies, which must outlive it.
  GradientSync(at::Tensor sums, Communicator* copies, GradSync how, int node);

  /// All elements from `offset` on are complete on this rank.
  void complete_from(std::int64_t offset);
  /// Waits for all buckets, starting those that are not under way.
  void finish();

 private:
  struct Bucket {
    at::Tensor data;
    Pending pending;
    std::size_t phase = 0;
  };

  /// The last `elements` of those that are not under way.
  void start(std::int64_t elements);
  /// Takes buckets through their phases, as far as done(pending) lets them.
  template <class Done>
  void advance(const Done& done);

  at::Tensor sums_;
  Communicator* copies_;
  std::unique_ptr<Communicator> node_, masters_, back_;  // hierarchical only; masters_ on each node's first rank
  std::vector<std::function<Pending(const at::Tensor&)>> phases_;  // what is done to a bucket, one after the other
  std::int64_t started_from_;                                      // everything from here on is under way
  std::deque<Bucket> buckets_;
};

}  // namespace tessera
