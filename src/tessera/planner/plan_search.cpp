#include "tessera/planner/plan_search.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "tessera/base/error.h"
#include "tessera/base/index.h"
#include "tessera/base/text.h"

namespace tessera {
namespace {

std::vector<std::int64_t> divisors(std::int64_t n) {
  std::vector<std::int64_t> out, others;
  for (std::int64_t d = 1; d * d <= n; ++d) {
    if (n % d != 0) continue;
    out.push_back(d);
    if (d * d != n) others.push_back(n / d);
  }
  out.insert(out.end(), others.rbegin(), others.rend());
  return out;
}

// Long thin tiles have long margins; a few rows or columns are all right.
std::vector<Grid> grids_of(std::int64_t tiles) {
  constexpr std::int64_t longest = 4;
  std::vector<Grid> out;
  for (const std::int64_t rows : divisors(tiles)) {
    const std::int64_t columns = tiles / rows;
    if (std::max(rows, columns) <= longest * std::min(rows, columns)) out.push_back({rows, columns});
  }
  return out;
}

// Writes down all that there are for one number of ranks and one batch.
class Writer {
 public:
  Writer(const SearchWish& wish, int cells, int ranks, std::int64_t batch, std::vector<PlanOptions>& out)
      : wish_(wish), cells_(cells), ranks_(ranks), batch_(batch), out_(out) {}

  void write() {
    const auto all = given("replicas") ? std::vector{wish_.plan.replicas.value_or(1)} : divisors(ranks_);
    for (const std::int64_t replicas : all) {
      if (ranks_ % replicas != 0 || batch_ % replicas != 0) continue;
      PlanOptions options = wish_.plan;
      if (replicas > 1) options.replicas = replicas;
      options.batch_size = batch_ / replicas;
      divide_replica(options, ranks_ / replicas);
    }
  }

 private:
  bool given(const char* flag) const { return wish_.given.contains(flag); }
  bool given_tiles() const { return given("grid") || given("num-spatial-parts"); }
  bool given_stages() const { return given("split-size") || given("balance"); }

  // Stages, of which the first few are divided into tiles, and the others into ways of the batch.
  void divide_replica(const PlanOptions& base, std::int64_t ranks) {
    const std::int64_t most = std::min<std::int64_t>(ranks, cells_);
    for (std::int64_t stages = 1; stages <= most; ++stages) {
      // Of many stages one more or less is no other plan.
      constexpr std::int64_t few = 8;
      const bool round = (stages & (stages - 1)) == 0 || (stages % 3 == 0 && (stages / 3 & (stages / 3 - 1)) == 0);
      if (stages > few && !round && !given_stages()) continue;
      if (given_stages() && stages != base.split_size.value_or(stages)) continue;
      for (std::int64_t spatial = 0; spatial <= stages; ++spatial) {
        // All, none, the first few: what is between them differs little.
        if (spatial > 2 && spatial + 1 < stages && !given("spatial-size")) continue;
        if (given("spatial-size") && spatial != *base.spatial_size) continue;
        for (const std::int64_t ways : divisors(base.batch_size)) {
          if (ways > 1 && (spatial == 0 || spatial == stages)) continue;
          if (given("local-DP") && ways != *base.local_dp) continue;
          const std::int64_t left = ranks - (stages - spatial) * ways;
          if (spatial == 0 ? left != 0 : left <= 0 || left % spatial != 0) continue;
          PlanOptions options = base;
          if (stages > 1) options.split_size = stages;
          if (ways > 1) options.local_dp = ways;
          tile(options, stages, spatial, spatial == 0 ? 1 : left / spatial);
        }
      }
    }
  }

  void tile(const PlanOptions& base, std::int64_t stages, std::int64_t spatial, std::int64_t tiles) {
    if (spatial == 0 || given_tiles()) {
      if (spatial == 0 && given_tiles()) return;
      if (spatial > 0) {
        const auto grids = requested_grids(base);
        if (grids.size() == 1 && grids[0].tiles() != tiles) return;
      }
      cut(base, stages);
      return;
    }
    if (tiles < 2) return;
    for (const Grid& grid : grids_of(tiles)) {
      PlanOptions options = base;
      options.grid = concat(grid);
      if (stages > 1) options.spatial_size = spatial;
      cut(options, stages);
    }
  }

  // Micros, and the order in which they go through the stages.
  void cut(const PlanOptions& base, std::int64_t stages) {
    const std::vector<std::string> all{"1f1b", "zero-bubble", "chimera", "gems-mast"};
    std::vector<std::string> schedules;
    if (given("schedule") || given("times") || stages == 1)
      schedules.push_back(base.schedule.value_or(given("times") ? "gems-master" : "1f1b"));
    else
      schedules = all;
    for (const std::string& schedule : schedules) {
      PlanOptions options = base;
      if (stages > 1 || given("schedule")) options.schedule = schedule;
      // Those of two directions train a batch, or several, in each of them.
      const bool gems = schedule == "gems-mast" || schedule == "gems-master";
      const std::int64_t batches = gems ? 2 * base.times.value_or(1) : 1;
      if (options.batch_size % batches != 0) continue;
      options.batch_size /= batches;
      for (const std::int64_t parts : divisors(options.batch_size)) {
        if (given("parts") ? parts != base.parts : stages == 1 && parts > 1) continue;
        // One micro goes through in one order, or in two directions.
        if (parts == 1 && !gems && schedule != "1f1b" && !given("schedule")) continue;
        // More micros than this fill a pipeline no better, and small ones compute slowly.
        if (!given("parts") && parts > 8 * stages) continue;
        options.parts = parts;
        if (options.batch_size / parts % options.local_dp.value_or(1) == 0) out_.push_back(options);
      }
    }
  }

  const SearchWish& wish_;
  const int cells_;
  const int ranks_;
  const std::int64_t batch_;
  std::vector<PlanOptions>& out_;
};

Recompute recompute_of(const SearchWish& wish) { return wish.footprint.recompute; }

// The cells in stages that take the same time, by what they cost and not by what they count.
std::optional<std::string> balanced(const PlanOptions& o, const SearchWish& wish, const CellCosts& costs) {
  if (o.split_size.value_or(1) == 1 || wish.given.contains("balance") || wish.given.contains("balance-by"))
    return o.balance;
  const auto grids = requested_grids(o);
  std::vector<std::int64_t> ranks(static_cast<std::size_t>(*o.split_size), o.local_dp.value_or(1));
  const auto spatial = static_cast<std::size_t>(o.spatial_size.value_or(static_cast<std::int64_t>(grids.size())));
  for (std::size_t s = 0; s < std::min(spatial, ranks.size()); ++s)
    ranks[s] = grids[std::min(s, grids.size() - 1)].tiles();
  if (ranks.size() > static_cast<std::size_t>(costs.cells())) return o.balance;
  const double samples = static_cast<double>(o.batch_size / o.parts) / static_cast<double>(ranks.front());
  std::vector<std::string> words;
  for (const int cells : balance_seconds(costs.totals(1, samples), ranks)) words.push_back(std::to_string(cells));
  return join(words, ",");
}

// As it looks before anybody asks how boxes lie.
Candidate rough_candidate(const Graph& graph, PlanOptions options, int ranks, const SearchWish& wish,
                          const CellCosts& costs) {
  Candidate c{.options = options, .recompute = recompute_of(wish)};
  c.options.balance = balanced(options, wish, costs);
  try {
    c.plan = make_plan(graph, c.options, ranks);
  } catch (const UsageError&) {
    if (c.options.balance == options.balance) throw;
    // Tiles may be too small for the cells that a stage would get then.
    c.options = options;
    c.plan = make_plan(graph, options, ranks);
  }
  c.loads.resize(c.plan.stages.size());
  for (int s = 0; s < static_cast<int>(c.loads.size()); ++s) {
    StageLoad& load = c.loads[index(s)];
    load.threads = wish.threads(c.plan, s);
    load.seconds = stage_seconds(graph, c.plan, s, costs, load.threads);
  }
  c.expected = forecast(c.plan, c.loads, wish.site(ranks));
  return c;
}

// Margins make tiles larger than their share: by what their boxes say.
void refine(const Graph& graph, Candidate& c, const SearchWish& wish) {
  const Sample sample = make_sample(graph, c.plan);
  auto loads = loads_of(graph, sample.plan, sample.layout, c.recompute, wish.footprint.element_bytes);
  for (std::size_t s = 0; s < loads.size(); ++s) {
    loads[s].seconds = c.loads[s].seconds;
    loads[s].threads = c.loads[s].threads;
  }
  c.loads = std::move(loads);
  expect_from(c, wish);
}

bool fits(const Candidate& c, const SearchWish& wish) { return wish.memory <= 0 || c.peak() <= wish.memory; }

void weigh(const Graph& graph, Candidate& c, const SearchWish& wish) {
  FootprintOptions options = wish.footprint;
  options.recompute = c.recompute;
  const Sample sample = make_sample(graph, c.plan);
  options.packed = c.plan.ranks_per_node > 0 && c.plan.ranks() > c.plan.ranks_per_node;
  options.threads.clear();
  for (int rank = 0; rank < sample.plan.ranks_per_replica(); ++rank)
    options.threads.push_back(c.loads[index(sample.plan.first_places_of(rank).front().stage)].threads);
  c.needs = predicted_memory(sample.plan, sample.layout, graph, options);
}

// If it is too large as it is: with values made again in backward, which takes one more forward.
bool make_fit(const Graph& graph, Candidate& c, const SearchWish& wish) {
  weigh(graph, c, wish);
  if (fits(c, wish)) return true;
  if (wish.given.contains("recompute")) return false;
  Candidate smaller = c;
  smaller.recompute = {Recompute::block, 1};
  weigh(graph, smaller, wish);
  const bool enough = fits(smaller, wish);
  if (!enough && smaller.peak() >= c.peak()) return false;
  for (StageLoad& load : smaller.loads) load.seconds.input_gradient += load.seconds.forward;
  expect_from(smaller, wish);
  c = std::move(smaller);
  return enough;
}

std::vector<PlanOptions> options_to_try(const SearchWish& wish, int cells, int ranks) {
  std::vector<PlanOptions> out;
  std::vector<std::int64_t> batches{wish.plan.batch_size};
  for (std::int64_t b = 2 * wish.plan.batch_size; b <= wish.batch_at_most; b *= 2) batches.push_back(b);
  for (const std::int64_t batch : batches) Writer(wish, cells, ranks, batch, out).write();
  return out;
}

// Of many, those that may win: by the work of a rank and the pipeline's bubble alone. Fast ones may not fit, so the
// best of every other kind is kept as well.
std::vector<PlanOptions> most_promising(std::vector<PlanOptions> all) {
  constexpr std::size_t enough = 250;
  if (all.size() <= enough) return all;
  const auto bubble = [](const PlanOptions& o) {
    const std::string schedule = o.schedule.value_or("1f1b");
    const double share = schedule == "zero-bubble" ? 1.0 / 3 : schedule == "chimera" ? 0.5 : 1;
    return share * static_cast<double>(o.split_size.value_or(1) - 1) / static_cast<double>(o.parts);
  };
  std::stable_sort(all.begin(), all.end(),
                   [&](const PlanOptions& a, const PlanOptions& b) { return bubble(a) < bubble(b); });
  using Kind = std::tuple<std::int64_t, std::int64_t, std::int64_t>;  // replicas, stages, spatial ones
  std::set<Kind> kinds;
  std::vector<PlanOptions> out;
  for (const PlanOptions& o : all) {
    const bool fresh =
        kinds.insert({o.replicas.value_or(1), o.split_size.value_or(1), o.spatial_size.value_or(o.grid ? 1 : 0)})
            .second;
    if (fresh || out.size() < enough / 2) out.push_back(o);
  }
  return out;
}

}  // namespace

double Candidate::peak() const {
  double most = 0;
  for (const Footprint& f : needs) most = std::max(most, f.peak());
  return most;
}

PlanFlags Candidate::flags() const {
  PlanFlags flags = flags_of(options);
  flags["batch-size"] = std::to_string(options.batch_size);
  if (words_of(recompute) != "norm") flags["recompute"] = words_of(recompute);
  return flags;
}

void expect_from(Candidate& c, const SearchWish& wish) {
  c.expected = forecast(c.plan, c.loads, wish.site(c.plan.ranks()));
}

std::string kind_of(const Plan& plan) {
  const std::size_t stages = plan.stages.size();
  const Stage& first = plan.stages.front();
  std::string words;
  if (first.grid.tiles() > 1) words = concat(first.grid, " tiles");
  if (stages > 1) {
    const bool all_tiled = plan.stages.back().grid.tiles() > 1;
    words += concat(words.empty() ? ""
                    : all_tiled   ? " in "
                                  : " before ",
                    words.empty() ? "pipeline of " : "", stages, " stages");
  }
  if (plan.replicas > 1)
    words =
        words.empty() ? concat(plan.replicas, " copies of the network") : concat(plan.replicas, " copies of ", words);
  return words.empty() ? "one rank" : words;
}

namespace {

[[noreturn]] void nothing_is_possible(const SearchWish& wish, const std::optional<UsageError>& problem) {
  if (problem) throw *problem;
  throw UsageError(concat("no plan of ", wish.ranks.back(), " ranks has the flags that are given, with a batch of ",
                          wish.plan.batch_size, "; give fewer flags, another --ranks or another --batch-size"));
}

// What of a search a candidate has been through.
enum class Seen { roughly, refined, too_large };

}  // namespace

void check_search(const Graph& graph, const SearchWish& wish) {
  std::optional<UsageError> problem;
  for (const int ranks : wish.ranks)
    for (const PlanOptions& options : options_to_try(wish, static_cast<int>(graph.cells().size()), ranks)) {
      try {
        make_plan(graph, options, ranks);
        return;
      } catch (const UsageError& error) {
        if (!problem) problem = error;
      }
    }
  nothing_is_possible(wish, problem);
}

SearchResult search_plans(const Graph& graph, const SearchWish& wish, const CellCosts& costs) {
  SearchResult result;
  std::vector<Candidate> all;
  std::optional<UsageError> problem;
  for (const int ranks : wish.ranks)
    for (const PlanOptions& options : most_promising(options_to_try(wish, costs.cells(), ranks))) {
      try {
        all.push_back(rough_candidate(graph, options, ranks, wish, costs));
      } catch (const UsageError& error) {
        ++result.refused;
        if (!problem) problem = error;
      }
    }
  result.tried = static_cast<int>(all.size());
  if (all.empty()) nothing_is_possible(wish, problem);
  const auto faster = [](const Candidate& a, const Candidate& b) {
    return a.images_per_second() > b.images_per_second();
  };
  std::sort(all.begin(), all.end(), faster);
  // Boxes take time to lay out, so only of those that may win: what comes on top is messages, which slow things down.
  const std::size_t looked_at = 5 * wish.wanted;
  for (std::size_t i = 0; i < all.size() && i < looked_at; ++i) refine(graph, all[i], wish);
  std::sort(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(std::min(all.size(), looked_at)), faster);
  std::vector<Seen> seen(all.size(), Seen::roughly);
  std::fill(seen.begin(), seen.begin() + static_cast<std::ptrdiff_t>(std::min(all.size(), looked_at)), Seen::refined);
  std::set<std::pair<std::string, std::int64_t>> large_kinds;
  for (std::size_t i = 0; i < all.size(); ++i) {
    Candidate& c = all[i];
    if (result.best.size() >= wish.wanted) break;
    if (i >= looked_at) refine(graph, c, wish);
    seen[i] = Seen::refined;
    if (result.best.empty() && result.large.size() < wish.wanted &&
        large_kinds.insert({kind_of(c.plan), c.plan.global_batch()}).second)
      result.large.push_back(c);
    if (make_fit(graph, c, wish)) {
      result.best.push_back(c);
      continue;
    }
    seen[i] = Seen::too_large;
    if (result.best.empty() && !result.too_large) result.too_large = c;
    if (!result.smallest || c.peak() < result.smallest->peak()) result.smallest = c;
  }
  if (!result.best.empty()) result.large.clear();
  std::stable_sort(result.best.begin(), result.best.end(), faster);
  std::set<std::string> kinds;
  for (const Candidate& c : result.best) kinds.insert(kind_of(c.plan));
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (result.others.size() == wish.wanted) break;
    if (seen[i] == Seen::too_large) continue;
    if (const std::string kind = kind_of(all[i].plan); kinds.insert(kind).second) {
      if (seen[i] == Seen::roughly) refine(graph, all[i], wish);
      result.others.emplace_back(kind, all[i]);
    }
  }
  std::stable_sort(result.others.begin(), result.others.end(),
                   [&](const auto& a, const auto& b) { return faster(a.second, b.second); });
  return result;
}

}  // namespace tessera
