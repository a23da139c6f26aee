// What one member of a stage holds while it goes through its steps: runtime/member.cpp with memory in place of tensors.
#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "tessera/plan/waits.h"
#include "tessera/schedule/footprint.h"

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
  Ledger& ledger_;
  /// Sizes of those that nobody has. They may be given back after the pool is gone.
  const std::shared_ptr<std::multiset<double>> free_ = std::make_shared<std::multiset<double>>();
};

/// Stands for a Slab.
struct SlabMemory {
  Memory memory;
  Box box;
  Box whole = {};  ///< of which the box is a part; empty: of nothing larger
  bool defined() const { return memory != nullptr; }
  bool exclusive() const { return memory.use_count() == 1; }
  bool dense() const {
    return whole.empty() ||
           (whole.width() == box.width() && (box.batch().size() == 1 || whole.height() == box.height()));
  }
  SlabMemory part(const Box& part) && {
    Box outer = whole.empty() ? box : whole;
    return {std::move(memory), part, outer == part ? Box{} : outer};
  }
};

/// Stands for a MemberState.
struct MemberMemory {
  bool expects_values = false, expects_gradients = false;
  std::vector<SlabMemory> values;
  std::vector<std::vector<SlabMemory>> gradients;
  std::vector<Memory> saved;
  std::map<int, Memory> margins;
  std::set<int> stored;
  struct Returning {
    SlabMemory gradient;
    bool margin = false;
    std::vector<Memory> staged;  ///< shares of others, until they are added
  };
  std::multimap<int, Returning> returning;
  struct Deferred {
    std::size_t step;
    std::vector<Memory> held;
  };
  std::deque<Deferred> deferred;
  struct Halfway {
    std::size_t step;
    SlabMemory first, second;  ///< the gradient as the first pass leaves it: of both terms of a product
    std::vector<SlabMemory> gradients;
    bool away = false;
  };
  std::unique_ptr<Halfway> halfway = nullptr;
  std::multimap<int, SlabMemory*> away_gradients;  ///< by value
  std::set<std::size_t> away_saved;                ///< by step
  std::set<int> away_margins, arriving;            ///< by value
};

/// What the members of a stage on one rank have in common. All must outlive them.
struct StageMemory {
  const Graph& graph;
  const Plan& plan;
  const Layout& layout;
  const Program& program;
  const FootprintOptions& options;
  const Waits& waits;
  Ledger& ledger;
  Buffers& buffers;
  int threads = 1;
  bool turns = false;
  bool apart() const { return turns && options.store; }
};

class MemberWalk {
 public:
  MemberWalk(const StageMemory& stage, const Plan::Place& place, std::size_t ordinal);

  void expect_values(MemberMemory& micro) const;
  void expect_gradients(MemberMemory& micro) const;
  void begin_forward(MemberMemory& micro) const;
  void offer(MemberMemory& micro, std::size_t s) const;
  void forward_step(MemberMemory& micro, std::size_t s, int phase);
  void begin_backward(MemberMemory& micro) const;
  void offer_gradient(MemberMemory& micro, std::size_t s, bool defer_weights);
  void backward_step(MemberMemory& micro, std::size_t s, bool defer_weights);
  void look_ahead(MemberMemory& micro, int phase) const;
  void put_down(MemberMemory& micro, int phase) const;
  bool fill_wait(MemberMemory& micro) const;
  /// All that was sent has arrived.
  void end_phase() {
    sent_.clear();
    outgoing_.clear();
  }

 private:
  struct Boxes {
    Box owned, made, held, frame;
  };
  // Bytes of a movement's messages to and from others.
  struct Strips {
    std::vector<double> sent, received;  // one for each peer
  };

  const Boxes& boxes(int v) const { return boxes_[static_cast<std::size_t>(v)]; }
  const std::vector<Step>& steps() const { return stage_.program.steps; }
  double bytes(const Box& box, std::int64_t channels) const {
    return static_cast<double>(box.volume() * channels * stage_.options.element_bytes);
  }
  double bytes(int v, const Box& box) const { return bytes(box, stage_.graph.shape({v}).channels); }
  Memory take(double bytes) const;
  SlabMemory piece(int v, const Box& box) const { return {take(bytes(v, box)), box}; }
  Workspace workspace(const Step& step) const;
  bool runs(const Step& step) const { return step.agreement != Agreement::none || !boxes(step.output).made.empty(); }
  bool has_weights(const Step& step) const;

  void bring_inputs(MemberMemory& micro, const Step& step) const;
  void make(MemberMemory& micro, std::size_t s, bool save) const;
  void exchange_margin(MemberMemory& micro, int v);
  double received(int v) const;
  void release(MemberMemory& micro, int v) const;
  void rest(MemberMemory& micro, int v, int phase) const;
  void restore(MemberMemory& micro, int v) const;
  void wake_gradients(MemberMemory& micro, int v) const;
  void wake_saved(MemberMemory& micro, std::size_t s) const;
  void wake_margins(MemberMemory& micro, int v) const;
  void wake(int v, SlabMemory& piece) const { piece = this->piece(v, piece.box); }
  std::vector<SlabMemory> take_gradients(MemberMemory& micro, const Step& step, bool defer_weights);
  /// PointwiseFlow::first_pass() and input_gradients().
  void first_pass(MemberMemory& micro, const Step& step, std::vector<SlabMemory> gradients) const;
  std::vector<SlabMemory> gradients_of_pointwise(MemberMemory& micro, const Step& step, SlabMemory g,
                                                 SlabMemory second) const;
  std::vector<SlabMemory> gradients_of(const Step& step, std::vector<SlabMemory> gradients) const;
  SlabMemory covering(int v, SlabMemory term, const Box& box) const;
  SlabMemory sum(int v, SlabMemory a, SlabMemory b) const;
  void accumulate(MemberMemory& micro, int v, SlabMemory term) const;
  SlabMemory take_merged(MemberMemory& micro, int v, const Box& inside, const Box& box) const;
  void send_back(MemberMemory& micro, int v);
  void message(const std::vector<double>& strips, const std::vector<double>& more = {}) const;
  void send_copies(const std::vector<double>& strips);

  const StageMemory& stage_;
  const std::size_t ordinal_;
  std::vector<Boxes> boxes_;                                    // by value
  std::multimap<int, Strips> margins_, arrivals_, departures_;  // by value
  bool norm_group_ = false, tile_group_ = false, waits_ = false;
  std::vector<bool> put_off_;     // by step
  std::vector<Memory> sent_;      // copies of strips that others have not taken yet
  std::vector<Memory> outgoing_;  // what other stages get when all members have had their turn
};

}  // namespace tessera
