#include "tessera/schedule/simulator.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/index.h"
#include "tessera/plan/balance.h"
#include "tessera/program/program.h"

namespace tessera {
namespace {

using Kind = Action::Kind;
using Lists = std::vector<std::vector<Action>>;

constexpr double not_yet = -1;

std::string name_of(const Action& a) { return a.kind == Kind::step ? "S" : concat(a, " of stage ", a.stage); }

bool gives_input_gradient(Kind kind) { return kind == Kind::backward || kind == Kind::input_gradient; }
bool gives_weight_gradient(Kind kind) { return kind == Kind::backward || kind == Kind::weight_gradient; }

/// When a stage was done with a micro.
struct Ends {
  double forward = not_yet, input_gradient = not_yet, weight_gradient = not_yet;
};

class Walk {
 public:
  Walk(const Plan& plan, const Lists& lists, std::span<const StageCost> costs, std::optional<int> receives_ahead)
      : plan_(plan),
        lists_(lists),
        costs_(costs.begin(), costs.end()),
        receives_ahead_(receives_ahead),
        next_(lists.size(), 0),
        sent_(lists.size(), true),
        free_at_(lists.size(), 0.0),
        live_(lists.size(), 0),
        live_cost_(lists.size(), 0.0) {
    ensure(static_cast<int>(lists.size()) == plan.ranks_per_replica(), "a schedule of ", lists.size(),
           " lists for the ", plan.ranks_per_replica(), " ranks of a replica");
    if (costs_.empty()) costs_.resize(plan.stages.size());
    ensure(costs_.size() == plan.stages.size(), costs_.size(), " costs for ", plan.stages.size(), " stages");
    result_.ranks.resize(lists.size());
    ends_.resize(static_cast<std::size_t>(plan.directions()) * plan.stages.size());
    for (std::size_t i = 0; i < ends_.size(); ++i)
      ends_[i].resize(static_cast<std::size_t>(plan.micros(i < plan.stages.size() ? Direction::down : Direction::up)));
  }

  Simulation run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (int rank = 0; rank < ranks(); ++rank) {
        moved |= try_send(rank);
        while (try_run(rank)) moved = true;
      }
    }
    for (int rank = 0; rank < ranks(); ++rank)
      if (!finished(rank)) throw Error(why(rank));
    check_complete();
    return std::move(result_);
  }

 private:
  int ranks() const { return static_cast<int>(lists_.size()); }
  int last_stage() const { return static_cast<int>(plan_.stages.size()) - 1; }
  bool finished(int rank) const { return next_[index(rank)] == lists_[index(rank)].size(); }
  const Action& current(int rank) const { return lists_[index(rank)][next_[index(rank)]]; }
  Ends& ends(Direction direction, int stage, int micro) {
    return ends_[index(static_cast<int>(direction)) * plan_.stages.size() + index(stage)][index(micro)];
  }
  Ends& ends(const Action& a) { return ends(a.direction, a.stage, a.micro); }

  // Who runs the action together.
  std::vector<int> members(const Action& a) const {
    std::vector<int> out;
    if (a.kind == Kind::step)
      for (int rank = 0; rank < ranks(); ++rank) out.push_back(rank);
    else
      out = plan_.ranks_of(a.direction, a.stage);
    return out;
  }

  void check_place(int rank, const Action& a) const {
    if (a.kind == Kind::step) return;
    const bool known = a.stage >= 0 && a.stage <= last_stage() && static_cast<int>(a.direction) < plan_.directions() &&
                       a.micro >= 0 && a.micro < plan_.micros(a.direction);
    const auto group = known ? members(a) : std::vector<int>{};
    if (std::find(group.begin(), group.end(), rank) == group.end())
      throw Error(concat("schedule: rank ", rank, " has no part in ", name_of(a)));
  }

  struct Need {
    Action action;
    double end = not_yet;
  };
  std::vector<Need> needs(const Action& a) {
    std::vector<Need> out;
    if (a.kind == Kind::forward && a.stage > 0)
      out.push_back(
          {{Kind::forward, a.stage - 1, a.micro, a.direction}, ends(a.direction, a.stage - 1, a.micro).forward});
    if (gives_input_gradient(a.kind)) {
      out.push_back({{Kind::forward, a.stage, a.micro, a.direction}, ends(a).forward});
      if (a.stage < last_stage())
        out.push_back(
            {{a.kind, a.stage + 1, a.micro, a.direction}, ends(a.direction, a.stage + 1, a.micro).input_gradient});
    }
    if (a.kind == Kind::weight_gradient)
      out.push_back({{Kind::input_gradient, a.stage, a.micro, a.direction}, ends(a).input_gradient});
    return out;
  }

  bool try_run(int rank) {
    if (finished(rank)) return false;
    const Action a = current(rank);
    check_place(rank, a);
    const auto group = members(a);
    double begin = 0;
    for (const int member : group) {
      if (finished(member) || current(member) != a || !sent_[index(member)]) return false;
      begin = std::max(begin, free_at_[index(member)]);
    }
    if (a.kind != Kind::step)
      for (const auto& need : needs(a)) {
        if (need.end == not_yet) return false;
        begin = std::max(begin, need.end);
      }
    perform(a, group, begin);
    return true;
  }

  void perform(const Action& a, const std::vector<int>& group, double begin) {
    double time = 0;
    if (a.kind != Kind::step) {
      const StageCost& cost = costs_[index(a.stage)];
      Ends& e = ends(a);
      const auto finish = [&](double& end, double takes) {
        if (end != not_yet) throw Error(concat("schedule: rank ", group.front(), " runs ", name_of(a), " twice"));
        time += takes;
        end = begin + time;
      };
      if (a.kind == Kind::forward) finish(e.forward, cost.forward);
      if (gives_input_gradient(a.kind)) finish(e.input_gradient, cost.input_gradient);
      if (gives_weight_gradient(a.kind)) finish(e.weight_gradient, cost.weight_gradient);
      // One kernel gives both gradients, and nothing leaves before it is done.
      if (a.kind == Kind::backward) e.input_gradient = e.weight_gradient;
    }
    for (const int rank : group) {
      auto& r = result_.ranks[index(rank)];
      r.spans.push_back({a, begin, begin + time});
      r.busy += time;
      count_live(rank, a);
      free_at_[index(rank)] = begin + time;
      ++next_[index(rank)];
      sent_[index(rank)] = !receives_ahead_;
    }
    result_.makespan = std::max(result_.makespan, begin + time);
  }

  void count_live(int rank, const Action& a) {
    auto& r = result_.ranks[index(rank)];
    const int change = a.kind == Kind::forward ? 1 : gives_weight_gradient(a.kind) ? -1 : 0;
    live_[index(rank)] += change;
    live_cost_[index(rank)] += change * costs_[index(a.stage)].live;
    r.live_micros = std::max(r.live_micros, live_[index(rank)]);
    r.live_cost = std::max(r.live_cost, live_cost_[index(rank)]);
  }

  // What waits for the message of an action.
  std::optional<Action> consumer(const Action& a) const {
    if (a.kind == Kind::forward && a.stage < last_stage())
      return Action{Kind::forward, a.stage + 1, a.micro, a.direction};
    if (gives_input_gradient(a.kind) && a.stage > 0)
      return Action{Kind::input_gradient, a.stage - 1, a.micro, a.direction};
    return std::nullopt;
  }

  bool posted(int rank, const Action& wanted) {
    const bool forward = wanted.kind == Kind::forward;
    if ((forward ? ends(wanted).forward : ends(wanted).input_gradient) != not_yet) return true;
    const auto& list = lists_[index(rank)];
    const std::size_t first = next_[index(rank)];
    if (*receives_ahead_ == 0 && !sent_[index(rank)]) return false;
    const std::size_t end = std::min(list.size(), first + index(std::max(1, *receives_ahead_)));
    return std::any_of(list.begin() + static_cast<std::ptrdiff_t>(first),
                       list.begin() + static_cast<std::ptrdiff_t>(end), [&](const Action& a) {
                         return (forward ? a.kind == Kind::forward : gives_input_gradient(a.kind)) &&
                                a.stage == wanted.stage && a.micro == wanted.micro && a.direction == wanted.direction;
                       });
  }

  bool try_send(int rank) {
    if (sent_[index(rank)]) return false;
    const auto wanted = consumer(lists_[index(rank)][next_[index(rank)] - 1]);
    if (wanted)
      for (const int receiver : members(*wanted))
        if (!posted(receiver, *wanted)) return false;
    return sent_[index(rank)] = true;
  }

  // Why the rank does not get on.
  std::string why(int rank) {
    const Action& a = current(rank);
    const std::string text = concat("schedule: rank ", rank, " waits for ever at ", name_of(a), ": ");
    if (!sent_[index(rank)])
      return text + concat("nobody takes what ", name_of(lists_[index(rank)][next_[index(rank)] - 1]), " has made");
    if (a.kind != Kind::step)
      for (const auto& need : needs(a))
        if (need.end == not_yet) return text + concat(name_of(need.action), " has not run");
    for (const int member : members(a)) {
      if (finished(member)) return text + concat("rank ", member, " has nothing more to do");
      if (current(member) != a) return text + concat("rank ", member, " is at ", name_of(current(member)));
    }
    return text + "its members wait for each other";
  }

  void check_complete() const {
    for (std::size_t i = 0; i < ends_.size(); ++i)
      for (std::size_t m = 0; m < ends_[i].size(); ++m) {
        const Ends& e = ends_[i][m];
        if (e.forward == not_yet || e.input_gradient == not_yet || e.weight_gradient == not_yet)
          throw Error(concat("schedule: stage ", i % plan_.stages.size(), " never finishes micro ", m,
                             i < plan_.stages.size() ? " of direction down" : " of direction up"));
      }
  }

  const Plan& plan_;
  const Lists& lists_;
  std::vector<StageCost> costs_;
  std::optional<int> receives_ahead_;
  std::vector<std::size_t> next_;  ///< by rank: how many actions it has run
  std::vector<bool> sent_;         ///< by rank: nothing that it has made waits for a receive
  std::vector<double> free_at_;
  std::vector<int> live_;
  std::vector<double> live_cost_;
  std::vector<std::vector<Ends>> ends_;  ///< [direction and stage][micro]
  Simulation result_;
};

}  // namespace

double Simulation::idle() const {
  double sum = 0;
  for (const auto& rank : ranks) sum += idle(rank);
  return ranks.empty() ? 0 : sum / static_cast<double>(ranks.size());
}

int Simulation::live_micros() const {
  int most = 0;
  for (const auto& rank : ranks) most = std::max(most, rank.live_micros);
  return most;
}

std::vector<StageCost> stage_costs(const Plan& plan, const Graph& graph) {
  std::vector<StageCost> costs;
  for (const auto& stage : plan.stages) {
    Work work;
    for (int n = stage.first_node; n < stage.end_node; ++n) {
      const Node& node = graph.nodes()[static_cast<std::size_t>(n)];
      work += node_work(graph, node, plan.micro_size());
    }
    const double kept = kept_elements(graph, Program(graph, {stage.first_node, stage.end_node}, Recompute::norm)) *
                        static_cast<double>(plan.micro_size());
    const auto members = static_cast<double>(stage.ranks.size());
    costs.push_back(
        {work.forward / members, work.input_gradient / members, work.weight_gradient / members, kept / members});
  }
  return costs;
}

Simulation simulate(const Plan& plan, const Lists& schedule, std::span<const StageCost> costs) {
  return Walk(plan, schedule, costs, std::nullopt).run();
}

void check_blocking_sends(const Plan& plan, const Lists& schedule, int receives_ahead) {
  Walk(plan, schedule, {}, receives_ahead).run();
}

}  // namespace tessera
