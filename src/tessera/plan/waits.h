// What waits while other members of a stage have their turns, and where: on the device as long as there is room, or
// elsewhere (a store). It is decided before a run, from sizes alone, so whoever predicts memory sees what the run does.
#pragma once

#include <array>
#include <limits>
#include <vector>

#include "tessera/plan/phases.h"

namespace tessera {

/// What can wait. A value, its gradient, or what a step saves for backward.
enum class Idle { value, gradient, saved };

/// One of them from the end of a phase to the beginning of another, on all members of a rank.
struct Wait {
  Idle thing = Idle::value;
  int id = 0;  ///< of the value, or of the step
  int from = 0, until = 0;
  std::vector<double> bytes;  ///< by member
  int staying = 0;            ///< the first so many members leave it on the device

  double all_bytes(int first_member) const {
    double sum = 0;
    for (std::size_t m = static_cast<std::size_t>(first_member); m < bytes.size(); ++m) sum += bytes[m];
    return sum;
  }
};

class Waits {
 public:
  static constexpr double unlimited = std::numeric_limits<double>::infinity();

  /// Of one stage on one rank. `members` are the rank's; `micros`: how many are alive at once.
  Waits(const Graph& graph, const Program& program, const Layout& layout, int stage, const std::vector<int>& members,
        std::int64_t element_bytes, int micros);

  /// Decides who stays so that no more than this many bytes wait on the device at any time. What is looked at again
  /// after the longest time leaves first: it makes room for the longest, and travels as often as anything else.
  void fit(double room);

  /// Whether the m-th member leaves it on the device at the end of a phase. What never waits stays.
  bool stays(Idle thing, int id, int phase, std::size_t m) const;
  /// Whether nobody looks at a value after a phase of backward.
  bool over(int value, int phase) const {
    const auto& looks = phases_.values[static_cast<std::size_t>(value)];
    return phase >= phases_.first_of_backward() && (looks.empty() || looks.back() <= phase);
  }
  /// Whether a value that does not stay after a phase is let go of, and made again, instead of leaving.
  bool let_go(int value, int phase) const {
    const auto& light = phase < phases_.first_of_backward() ? light_in_forward_ : light_;
    return light[static_cast<std::size_t>(value)];
  }
  const Phases& phases() const { return phases_; }

  /// The most that waits on the device, and elsewhere, at the end of any phase.
  double most_staying() const;
  double most_away() const;
  /// What leaves the device and comes back in a micro's forward and backward.
  double bytes_moved() const;

 private:
  const Wait* find(Idle thing, int id, int phase) const;
  void add(Idle thing, int id, const std::vector<int>& looks, const std::vector<double>& bytes, bool made_again);
  bool crosses(const Wait& wait) const;  // from forward to backward
  bool is_let_go(const Wait& wait) const { return wait.thing == Idle::value && let_go(wait.id, wait.from); }
  std::vector<double> waiting(bool on_device) const;

  Phases phases_;
  int micros_;
  std::vector<bool> light_, light_in_forward_;     // by value
  std::vector<Wait> waits_;                        // those of one thing one after the other
  std::array<std::vector<std::size_t>, 3> begin_;  // by thing and id: the first of its waits, and one more
};

/// How many weight gradients a stage puts off so that the stage before has its gradient sooner. Each holds what it
/// looks at meanwhile: three of them took a quarter more memory with GEMS, so plans of two directions put off one. With
/// turns all members would hold theirs at the same time.
inline std::size_t most_put_off_for_others(const Plan& plan, bool turns) {
  return turns ? 0 : plan.directions() > 1 ? 1 : most_put_off;
}

}  // namespace tessera
