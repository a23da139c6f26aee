// The ranks that hold the same parameters: tiles, ways, replicas, both directions.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "tessera/comm/communicator.h"
#include "tessera/geometry/box.h"

namespace tessera {

/// One of them, as it sees the others. Copies in one process keep values and the optimizer's memory in common: each
/// updates its share of them, and all see the result. Elsewhere every copy does the same to its own.
class Copies {
 public:
  /// Alone.
  Copies() = default;
  /// `group`: all of them; null when there is one only. `device`: where the parameters lie.
  Copies(std::unique_ptr<Communicator> group, at::DeviceType device);

  /// Null when alone.
  Communicator* group() const { return group_.get(); }
  int count() const { return group_ ? group_->size() : 1; }

  /// Whether zeros() are in memory that the copies have in common. It is charged to one after the other of them.
  bool common() const { return common_; }
  /// Collective.
  at::Tensor zeros(std::int64_t elements, const at::TensorOptions& options) const;
  /// Of the elements of common memory those that this copy writes; where nothing is common, all.
  Interval share(std::int64_t elements) const;
  /// Whether this copy writes the i-th of some things in common memory.
  bool writes(std::int64_t i) const { return !common_ || i % count() == group_->rank().value; }
  /// Returns when all have written to common memory what they had to, and may read it.
  void settle() const;

 private:
  std::unique_ptr<Communicator> group_;
  bool common_ = false;
  mutable int next_root_ = 0;
};

}  // namespace tessera
