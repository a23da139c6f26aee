// What one member of a stage holds while it goes through its actions: the executor's walk with memory in place of
// tensors.
#pragma once

#include <algorithm>
#include <deque>
#include <memory>

#include "tessera/plan/layout.h"
#include "tessera/schedule/footprint.h"
#include "tessera/schedule/schedule.h"

namespace tessera {

/// What is alive, and the most that ever was.
class Ledger {
 public:
  void add(double bytes) {
    live_ += bytes;
    peak_ = std::max(peak_, live_);
  }
  void remove(double bytes) { live_ -= bytes; }
  // Taken and given back at once.
  void touch(double bytes) { peak_ = std::max(peak_, live_ + bytes); }
  double peak() const { return peak_; }

 private:
  double live_ = 0, peak_ = 0;
};

/// Memory that several may hold, as tensors share their storage.
using Memory = std::shared_ptr<const void>;

/// Stands for the BufferPool of a communicator: what was taken once stays with the rank.
class Buffers {
 public:
  explicit Buffers(Ledger& ledger) : ledger_(ledger) {}
  Memory take(double bytes);

 private:
  struct Buffer {
    Memory memory;
    double bytes;
  };
  Ledger& ledger_;
  std::deque<Buffer> all_;
};

/// Goes through the steps of a stage as runtime/executor.cpp does. All arguments but the place must outlive it.
class MemberWalk {
 public:
  MemberWalk(const Graph& graph, const Plan& plan, const Layout& layout, const Plan::Place& place,
             const FootprintOptions& options, Ledger& ledger, Buffers& buffers);
  ~MemberWalk();

  /// Memory for what will arrive for an action.
  void expect(const Action& action);
  void run(const Action& action);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera
