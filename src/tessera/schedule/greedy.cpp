#include "tessera/schedule/greedy.h"

#include <algorithm>
#include <array>
#include <limits>

#include "tessera/base/error.h"

namespace tessera {
namespace {

using Kind = Action::Kind;

// Equal stages, and a backward that takes as long as two forwards.
constexpr int forward_ticks = 1;
constexpr int backward_ticks = 2;
constexpr int never = std::numeric_limits<int>::max();

// A stage in a direction. Micros go through it in order, forward and back.
struct Lane {
  Direction direction = Direction::down;
  int stage = 0;
  std::vector<int> ranks;
  int forwards = 0, backwards = 0;             ///< started
  std::vector<int> forward_end, backward_end;  ///< by micro

  int micros() const { return static_cast<int>(forward_end.size()); }
  int live() const { return forwards - backwards; }
};

class GreedyScheduler {
 public:
  GreedyScheduler(const Plan& plan, const GreedyRule& rule)
      : rule_(rule),
        stages_(static_cast<int>(plan.stages.size())),
        lists_(static_cast<std::size_t>(plan.ranks_per_replica())),
        free_at_(lists_.size(), 0),
        lanes_of_(lists_.size()) {
    for (int d = 0; d < plan.directions(); ++d)
      for (int s = 0; s < stages_; ++s) {
        const auto direction = static_cast<Direction>(d);
        const auto micros = static_cast<std::size_t>(plan.micros(direction));
        Lane lane{direction, s, {}, 0, 0, std::vector<int>(micros, never), std::vector<int>(micros, never)};
        for (const int rank : plan.ranks_of(direction, s)) {
          lane.ranks.push_back(rank);
          lanes_of_[static_cast<std::size_t>(rank)].push_back(lanes_.size());
        }
        left_ += 2 * micros;
        lanes_.push_back(std::move(lane));
      }
  }

  std::vector<std::vector<Action>> run() {
    while (true) {
      for (const auto& action : ready())
        if (can_start(action)) start(action);
      if (left_ == 0) return lists_;
      const auto later = [&](int t) { return t > now_ ? t : never; };
      int next = never;
      for (const int t : free_at_) next = std::min(next, later(t));
      ensure(next != never, "the greedy schedule stands still with ", left_, " actions to go");
      now_ = next;
    }
  }

 private:
  Lane& lane(Direction direction, int stage) {
    return lanes_[static_cast<std::size_t>(static_cast<int>(direction) * stages_ + stage)];
  }

  // What has its inputs, the preferred first.
  std::vector<Action> ready() {
    const auto done = [&](const std::vector<int>& ends, int micro) {
      return ends[static_cast<std::size_t>(micro)] <= now_;
    };
    std::vector<Action> actions;
    for (const Lane& l : lanes_) {
      const int f = l.forwards, b = l.backwards;
      if (f < l.micros() && (l.stage == 0 || done(lane(l.direction, l.stage - 1).forward_end, f)))
        actions.push_back({Kind::forward, l.stage, f, l.direction});
      if (b < f && done(l.forward_end, b) &&
          (l.stage == stages_ - 1 || done(lane(l.direction, l.stage + 1).backward_end, b)))
        actions.push_back({Kind::backward, l.stage, b, l.direction});
    }
    std::sort(actions.begin(), actions.end(), [&](const Action& a, const Action& b) { return order(a) < order(b); });
    return actions;
  }

  // The least comes first.
  std::array<int, 5> order(const Action& a) const {
    using Prefer = GreedyRule::Prefer;
    const bool forward = a.kind == Kind::forward;
    const int batch = batch_of(a), depth = stages_ - a.stage, direction = static_cast<int>(a.direction);
    switch (rule_.prefer) {
      case Prefer::backward:
        return {forward, batch, depth, a.micro, direction};
      case Prefer::backward_of_down:
        return {forward, batch, direction, depth, a.micro};
      case Prefer::deep_forward:
        return {!forward, batch, depth, a.micro, direction};
      case Prefer::shallow_forward:
        return {!forward, batch, a.stage, a.micro, direction};
      case Prefer::old_forward:
        return {!forward, batch, a.micro, depth, direction};
      case Prefer::forward_under_way:
        return {!forward ? 1 : a.stage > 0 ? 0 : 2, batch, depth, a.micro, direction};
    }
    throw Error("internal error: a greedy rule without a preference");
  }

  // Batches of a step in their turn: down, up, down, ...
  int batch_of(const Action& a) const {
    return rule_.batch == 0 ? 0 : 2 * (a.micro / rule_.batch) + static_cast<int>(a.direction);
  }

  bool can_start(const Action& a) {
    const Lane& l = lane(a.direction, a.stage);
    for (const int rank : l.ranks)
      if (free_at_[static_cast<std::size_t>(rank)] > now_) return false;
    return a.kind != Kind::forward || has_room(l, a);
  }

  bool has_room(const Lane& l, const Action& a) const {
    if (l.live() >= rule_.live_per_stage[static_cast<std::size_t>(a.stage)]) return false;
    if (rule_.batch == 0) return true;
    for (const int rank : l.ranks) {
      int live = 0;
      for (const std::size_t i : lanes_of_[static_cast<std::size_t>(rank)]) {
        const Lane& other = lanes_[i];
        live += other.live();
        const Action next{Kind::forward, other.stage, other.forwards, other.direction};
        if (other.forwards < other.micros() && batch_of(next) < batch_of(a)) return false;
      }
      if (live >= rule_.batch) return false;
    }
    return true;
  }

  void start(const Action& a) {
    Lane& l = lane(a.direction, a.stage);
    const bool forward = a.kind == Kind::forward;
    const int end = now_ + (forward ? forward_ticks : backward_ticks);
    ++(forward ? l.forwards : l.backwards);
    (forward ? l.forward_end : l.backward_end)[static_cast<std::size_t>(a.micro)] = end;
    for (const int rank : l.ranks) {
      free_at_[static_cast<std::size_t>(rank)] = end;
      lists_[static_cast<std::size_t>(rank)].push_back(a);
    }
    --left_;
  }

  const GreedyRule& rule_;
  int stages_;
  int now_ = 0;
  std::size_t left_ = 0;  ///< actions, a stage's members together
  std::vector<std::vector<Action>> lists_;
  std::vector<int> free_at_;
  std::vector<Lane> lanes_;  ///< direction by direction
  std::vector<std::vector<std::size_t>> lanes_of_;
};

}  // namespace

std::vector<std::vector<Action>> greedy_schedule(const Plan& plan, const GreedyRule& rule) {
  return GreedyScheduler(plan, rule).run();
}

}  // namespace tessera
