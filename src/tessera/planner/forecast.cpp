#include "tessera/planner/forecast.h"

#include <algorithm>
#include <limits>
#include <set>

#include "tessera/base/error.h"
#include "tessera/base/index.h"

namespace tessera {
namespace {

constexpr double never = std::numeric_limits<double>::infinity();

// Replicas whose batch norm agrees.
std::int64_t normalised_together(const Plan& plan) { return plan.batch_norm == NormScope::global ? plan.replicas : 1; }

double nodes_of(const Plan& plan, double ranks) {
  return plan.ranks_per_node > 0 ? std::max(1.0, ranks / static_cast<double>(plan.ranks_per_node)) : 1;
}

// A team on its way through its actions.
struct Runner {
  std::vector<Action> actions = {};
  TeamForecast spent = {};
  std::size_t next = 0;
  double left = 0;                // of the action that it is at, in seconds alone on a core
  double margins = 0, norms = 0;  // shares of that action
  bool at_work = false;
  double ranks() const { return static_cast<double>(spent.ranks.size()); }
  bool done() const { return next == actions.size(); }
  const Action& action() const { return actions[next]; }
  bool waits_with(const Action& a) const { return !done() && !at_work && action() == a; }
};

std::vector<Runner> runners_of(const Plan& plan) {
  std::vector<Runner> runners;
  for (Team& team : make_teams(plan)) {
    team.actions.pop_back();  // the update, which all do together in the end
    runners.push_back({.actions = std::move(team.actions), .spent = {.ranks = team.ranks}});
  }
  return runners;
}

// The links of so many neighbouring ranks: within a node, if they fit into one.
const Links& links_of(const Site& site, const Plan& plan, double ranks) {
  const bool within = plan.ranks_per_node <= 0 || ranks <= static_cast<double>(plan.ranks_per_node);
  return within || !site.between ? site.links : *site.between;
}

// The actions of a step in time. Ranks of a node share its cores evenly among those that are at work.
class Clock {
 public:
  Clock(const Plan& plan, std::span<const StageLoad> loads, const Site& site, bool recorded)
      : plan_(plan),
        loads_(loads),
        site_(site),
        recorded_(recorded),
        between_stages_(links_of(site, plan, plan.ranks_per_replica())),
        runners_(runners_of(plan)),
        on_(index(plan.directions()) * plan.stages.size()),
        ends_(2 * on_.size()) {
    for (std::size_t p = 0; p < ends_.size(); ++p) {
      const auto direction = static_cast<Direction>(p % on_.size() / plan.stages.size());
      ends_[p].assign(static_cast<std::size_t>(plan.micros(direction)), never);
    }
    for (std::size_t r = 0; r < runners_.size(); ++r)
      for (const Action& a : runners_[r].actions)
        if (auto& on = on_[place(a.stage, a.direction)]; on.empty() || on.back() != r) on.push_back(r);
    const double per_node = plan.ranks_per_node > 0 ? static_cast<double>(plan.ranks_per_node) : plan.ranks();
    const double nodes = nodes_of(plan, plan.ranks_per_replica());
    // Replicas share a node, too.
    const double replicas_here =
        std::max(1.0, std::min<double>(static_cast<double>(plan.replicas), per_node / plan.ranks_per_replica()));
    cores_ = site.cores > 0 ? site.cores * nodes / replicas_here : never;
  }

  double run() {
    while (true) {
      const double ready = start_all();
      double demand = 0;
      for (const Runner& r : runners_)
        if (r.at_work) demand += r.ranks() * loads_[index(r.action().stage)].threads;
      const double rate = demand > cores_ ? cores_ / demand : 1;
      double then = ready;
      for (const Runner& r : runners_)
        if (r.at_work) then = std::min(then, now_ + r.left / rate);
      if (then == never) break;
      advance(then, rate);
    }
    for (const Runner& r : runners_)
      if (!r.done()) throw Error("internal error: a forecast waits for ever");
    return now_;
  }

  // After run().
  std::vector<TeamForecast> teams() const {
    std::vector<TeamForecast> out;
    for (const Runner& r : runners_) {
      out.push_back(r.spent);
      out.back()[Part::waiting] = now_ - r.spent.computing - r.spent[Part::margins] - r.spent[Part::norms];
    }
    return out;
  }

 private:
  using Kind = Action::Kind;
  std::size_t place(int stage, Direction d) const {
    return index(static_cast<int>(d)) * plan_.stages.size() + index(stage);
  }
  // When a stage was done with a micro: with its value, or with its gradient, whether its weights' come with it or not.
  double& end(bool gradient, int stage, const Action& a) {
    return ends_[(gradient ? on_.size() : 0) + place(stage, a.direction)][index(a.micro)];
  }

  // When what the action needs has arrived; never: it is not made yet.
  double ready_at(const Action& a) {
    const auto made = [&](bool gradient, int stage, double bytes) {
      const double at = end(gradient, stage, a);
      return at == never ? never : at + between_stages_.message + bytes / between_stages_.message_bytes;
    };
    const bool first = a.stage == 0, last = a.stage + 1 == static_cast<int>(plan_.stages.size());
    if (a.kind == Kind::forward) return first ? 0 : made(false, a.stage - 1, loads_[index(a.stage)].arriving_bytes);
    if (a.kind == Kind::weight_gradient || last) return 0;
    return made(true, a.stage + 1, loads_[index(a.stage) + 1].arriving_bytes);
  }

  // What can start now starts; returns when the next thing that waits for a message can.
  double start_all() {
    double next = never;
    for (const Runner& r : runners_) {
      if (r.at_work || r.done()) continue;
      const Action a = r.action();
      // All that run the stage are at it.
      const auto& together = on_[place(a.stage, a.direction)];
      if (!std::all_of(together.begin(), together.end(), [&](std::size_t t) { return runners_[t].waits_with(a); }))
        continue;
      const double at = ready_at(a);
      if (at > now_) {
        next = std::min(next, at);
        continue;
      }
      for (const std::size_t t : together) start(runners_[t], a);
    }
    return next;
  }

  void start(Runner& runner, const Action& a) {
    const StageLoad& load = loads_[index(a.stage)];
    const double ranks = static_cast<double>(plan_.stages[index(a.stage)].ranks.size());
    const Links& links = links_of(site_, plan_, ranks);
    const Links& far = links_of(site_, plan_, ranks * static_cast<double>(normalised_together(plan_)));
    const double computes = a.kind == Kind::forward    ? load.seconds.forward
                            : a.kind == Kind::backward ? load.seconds.input_gradient + load.seconds.weight_gradient
                            : a.kind == Kind::input_gradient ? load.seconds.input_gradient
                                                             : load.seconds.weight_gradient;
    const bool talks = a.kind != Kind::weight_gradient;
    const double margins = talks ? load.exchanges * links.message + load.exchanged_bytes / links.message_bytes : 0;
    const double norms = talks ? load.agreements * far.agreement : 0;
    runner.left = computes + margins + norms;
    runner.at_work = true;
    if (recorded_) runner.spent.actions.push_back({a, now_, never});
    const double whole = std::max(runner.left, 1e-30);
    runner.margins = margins / whole;
    runner.norms = norms / whole;
  }

  void advance(double then, double rate) {
    const double took = then - now_;
    now_ = then;
    for (Runner& r : runners_) {
      if (!r.at_work) continue;
      r.spent[Part::margins] += took * r.margins;
      r.spent[Part::norms] += took * r.norms;
      r.spent.computing += took * (1 - r.margins - r.norms);
      r.left -= took * rate;
      // What is left of rounding, also where time has come so far that it does not move any more.
      if (r.left > 1e-12 && now_ + r.left / rate > now_) continue;
      r.at_work = false;
      if (recorded_) r.spent.actions.back().end = now_;
      const Action& a = r.action();
      if (a.kind != Kind::weight_gradient) end(a.kind != Kind::forward, a.stage, a) = now_;
      ++r.next;
    }
  }

  const Plan& plan_;
  std::span<const StageLoad> loads_;
  const Site& site_;
  const bool recorded_;
  const Links& between_stages_;
  std::vector<Runner> runners_;
  std::vector<std::vector<std::size_t>> on_;  // [place]: who runs it
  std::vector<std::vector<double>> ends_;     // [value or gradient, place][micro]
  double cores_ = never;
  double now_ = 0;
};

// Of the copies of a stage's parameters: tiles, ways, directions and replicas.
double copies_of(const Plan& plan, int stage) {
  return static_cast<double>(plan.replicas * plan.directions()) *
         static_cast<double>(plan.stages[index(stage)].ranks.size());
}

}  // namespace

std::vector<StageLoad> loads_of(const Graph& graph, const Plan& plan, const Layout& layout, Recompute recompute,
                                std::int64_t element_bytes) {
  std::vector<StageLoad> loads(plan.stages.size());
  for (std::size_t s = 0; s < loads.size(); ++s) {
    StageLoad& load = loads[s];
    const Stage& stage = plan.stages[s];
    constexpr std::int64_t narrowest_parameter = 4;
    for (int n = stage.first_node; n < stage.end_node; ++n)
      for (const auto& spec : graph.nodes()[index(n)].parameters)
        if (spec.trainable)
          load.parameter_bytes += static_cast<double>(spec.elements() * std::max(element_bytes, narrowest_parameter));
    const bool tiles_agree = static_cast<std::int64_t>(stage.ranks.size()) > stage.batch_ways;
    const bool norms_agree =
        plan.batch_norm != NormScope::local && (stage.ranks.size() > 1 || normalised_together(plan) > 1);
    if (!tiles_agree && !norms_agree) continue;
    for (const Step& step : stage_program(graph, plan, layout, static_cast<int>(s), recompute).steps)
      if (step.agreement == Agreement::norm ? norms_agree : step.agreement == Agreement::tiles && tiles_agree)
        load.agreements += 1;
  }
  // What the member with most of it has, which others wait for.
  std::vector<std::vector<double>> margins(loads.size()), arriving(loads.size());
  for (const Transfer& t : layout.transfers) {
    const auto& have = layout.at(t.from, t.value).owned;
    const auto& need = layout.at(t.to, t.value).held;
    const double bytes = static_cast<double>(graph.shape({t.value}).channels * element_bytes);
    auto& by_member = (t.from == t.to ? margins : arriving)[index(t.to)];
    by_member.resize(need.size());
    for (std::size_t m = 0; m < need.size(); ++m) {
      const std::int64_t mine = t.from == t.to ? intersect(need[m], have[m]).volume() : 0;
      by_member[m] += bytes * static_cast<double>(need[m].volume() - mine);
    }
    if (t.from == t.to) loads[index(t.to)].exchanges += 1;
  }
  const auto most = [](const std::vector<double>& v) { return v.empty() ? 0 : *std::max_element(v.begin(), v.end()); };
  for (std::size_t s = 0; s < loads.size(); ++s) {
    loads[s].exchanged_bytes = most(margins[s]);
    loads[s].arriving_bytes = most(arriving[s]);
  }
  return loads;
}

Forecast forecast(const Plan& plan, std::span<const StageLoad> loads, const Site& site, bool recorded) {
  ensure(loads.size() == plan.stages.size(), loads.size(), " loads for ", plan.stages.size(), " stages");
  Forecast out;
  Clock clock(plan, loads, site, recorded);
  out.seconds = clock.run();
  out.teams = clock.teams();
  const double ranks = plan.ranks_per_replica();
  for (const TeamForecast& team : out.teams) {
    const double share = static_cast<double>(team.ranks.size()) / ranks;
    out.computing += share * team.computing;
    out.talking += share * (team[Part::margins] + team[Part::norms]);
  }
  const Links& links = links_of(site, plan, plan.ranks());
  // Of the stages that a rank has: one in each direction.
  for (const TeamForecast& team : out.teams) {
    double summing = 0, updating = 0;
    std::set<int> held;
    for (const auto& place : plan.first_places_of(static_cast<int>(team.ranks.begin)))
      if (held.insert(place.stage).second) {
        const double copies = copies_of(plan, place.stage), bytes = loads[index(place.stage)].parameter_bytes;
        if (copies > 1) summing += links.agreement + bytes / links.sum_bytes;
        updating += bytes / site.update_bytes / (site.common_copies ? copies : 1);
      }
    out.summing = std::max(out.summing, summing);
    out.updating = std::max(out.updating, updating);
  }
  if (plan.ranks() > 1) out.summing += links.agreement;  // the loss
  const double images = static_cast<double>(plan.global_batch());
  const double step = out.seconds + out.summing + out.updating;
  // Readers take cores from those that compute; beside a device they only have to be as fast.
  if (site.cores > 0) out.reading = images * site.read / (site.cores * nodes_of(plan, plan.ranks()));
  out.seconds = step + out.reading;
  for (TeamForecast& team : out.teams) {
    team[Part::sync] = out.summing;
    team[Part::optimizer] = out.updating;
    team[Part::data] = out.reading;
  }
  return out;
}

}  // namespace tessera
