#include "automatic_plan.h"

#include <ATen/ops/empty.h>
#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "launch.h"
#include "limits.h"
#include "machine.h"
#include "measured_costs.h"
#include "memory_fit.h"
#include "plan_trial.h"
#include "progress.h"
#include "scaling.h"
#include "tessera/base/text.h"
#include "tessera/planner/plan_search.h"
#include "tessera/runtime/cores.h"
#include "tessera/runtime/device.h"
#include "tessera/trials/link_trials.h"
#include "tessera/trials/rehearsal.h"

namespace tessera {
namespace {

// Of threads on one machine: beyond that, links say little.
constexpr int most_thread_ranks_tried = 64;

/// Whether the device that the plan is for is here, so that it can be tried out.
bool at_hand(const Options& o) { return o.machine.empty() && (!o.on_gpus() || gpu_count() > 0); }

std::vector<int> ranks_to_try(const Options& o, const Launch& launch) {
  if (!o.scaling.empty()) {
    const auto range = parse_scaling(o.scaling);
    require(!o.ranks && !launch.ranks_started(), "--scaling ", o.scaling,
            " tries many numbers of ranks; leave out --ranks and mpirun");
    require(!at_hand(o) || range.second <= most_thread_ranks_tried, "--scaling ", o.scaling, " goes beyond the ",
            most_thread_ranks_tried, " ranks that can be tried out here; describe a larger machine with --machine");
    return doubled(range);
  }
  if (const auto started = launch.ranks_started()) {
    require(!o.ranks || *o.ranks == *started, "--ranks ", o.ranks.value_or(0), " and the launcher, which started ",
            *started, ", disagree; leave out --ranks");
    return {*started};
  }
  if (o.ranks) {
    require(!at_hand(o) || o.on_gpus() || *o.ranks <= most_thread_ranks_tried, "--ranks ", *o.ranks,
            " is more than the ", most_thread_ranks_tried,
            " that can be tried out here; start them with mpirun, or describe a larger machine ", "with --machine");
    return {*o.ranks};
  }
  require(at_hand(o), "--auto needs to know how many ranks there will be on a machine that is not here; use --ranks");
  const int most = o.on_gpus() ? gpu_count() : launch.cores();
  std::set<int> all{most};
  for (int ranks = 1; ranks <= most; ranks *= 2) all.insert({ranks, std::min(most, 3 * ranks)});
  return {all.begin(), all.end()};
}

/// Seconds of a core, to read one image: from a band of it, if it is large.
double seconds_to_read(const ImageSource& images) {
  constexpr std::int64_t most_numbers = std::int64_t{1} << 24;
  const auto [channels, rows, columns] = images.image_shape();
  const std::int64_t band = std::clamp<std::int64_t>(most_numbers / (channels * columns), 1, rows);
  const at::Tensor out = at::empty({channels, band, columns}, at::kFloat);
  double best = 1e9;
  for (int i = 0; i < 2; ++i) {
    const double begin = now_seconds();
    images.read({0}, {0, band}, {0, columns}, out);
    best = std::min(best, now_seconds() - begin);
  }
  return best * static_cast<double>(rows) / static_cast<double>(band);
}

SearchWish wish_of(const Job& job, const Options& o, const Launch& launch) {
  SearchWish wish{.plan = o.plan, .ranks = ranks_to_try(o, launch)};
  for (const auto& [name, value] : o.given) wish.given.insert(name);
  wish.batch_at_most = o.batch_at_most.value_or(0);
  if (job.images && !o.planning) wish.batch_at_most = std::min(wish.batch_at_most, job.images->size());
  wish.cores = o.on_gpus() ? 0 : launch.cores();
  for (const auto& limit : {o.memory, o.memory_limit})
    if (limit && (wish.memory == 0 || static_cast<double>(*limit) < wish.memory))
      wish.memory = static_cast<double>(*limit);
  if (const auto started = launch.ranks_started(); started && launch.ranks_on_node() < *started)
    if (!wish.plan.ranks_per_node) wish.plan.ranks_per_node = launch.ranks_on_node();
  if (!o.machine.empty()) {
    const Machine machine = read_machine(o.machine, o.dtype);
    wish.cores = 0;
    if (wish.memory == 0) wish.memory = machine.memory;
    if (!wish.plan.ranks_per_node) wish.plan.ranks_per_node = machine.ranks_per_node;
  }
  if (wish.memory == 0 && at_hand(o) && o.on_gpus() && !o.planning)
    wish.memory = free_gpu_memory_of_a_rank(wish.ranks.back(), launch);
  wish.footprint = footprint_for(job, o);
  const int cores = launch.cores();
  const bool gpus = wish.cores == 0;
  wish.threads = [cores, gpus, &o](const Plan& plan, int stage) {
    if (gpus) return o.threads.value_or(1);
    const int first = plan.stages[static_cast<std::size_t>(stage)].ranks.front();
    return threads_of_rank(o, cores, plan.ranks_at_work_beside(first));
  };
  return wish;
}

// Every number of ranks has links of its own: more of them share the cores.
std::map<int, Site> sites_of(const SearchWish& wish, const Job& job, const Options& o, const Launch& launch) {
  std::map<int, Site> sites;
  Site alone{.cores = wish.cores, .common_copies = job.common_copies};
  if (at_hand(o))
    launch.told([&] {  // the first process decides, so nobody else needs to know
      alone.update_bytes = update_rate(o.train.optimizer, o.train.activations(), 1);
      if (job.images && !o.on_gpus()) alone.read = seconds_to_read(*job.images);
      return std::string();
    });
  for (const int ranks : wish.ranks) {
    Site site = alone;
    const bool neighbours_here = launch.ranks_started() || !o.on_gpus();
    if (at_hand(o) && (neighbours_here || ranks == 1)) {
      const bool here = launch.ranks_started() || (!o.on_gpus() && ranks <= most_thread_ranks_tried);
      if (here && ranks > 1)
        launch.run(ranks, [&](Communicator& world) {
          const Links links = try_links(world, o.train.activations());
          if (world.rank() == Rank{0}) site.links = links;
        });
    } else if (!o.machine.empty()) {
      site = read_machine(o.machine, o.dtype).site;
    } else {
      // A GPU of today, and its neighbours on NVLink.
      site.links = {.message = 15e-6, .message_bytes = 100e9, .agreement = 30e-6, .sum_bytes = 80e9};
      site.update_bytes = 250e9;
    }
    sites[ranks] = site;
  }
  return sites;
}

std::string bytes(double b) { return human_bytes(static_cast<std::int64_t>(b)); }

std::string percent(double part, double whole) {
  return fmt::format("{:.0f}%", whole > 0 ? std::max(0.0, 100 * part / whole) : 0);
}

void print_candidates(const SearchResult& result, const SearchWish& wish, const Options& o) {
  Table table({"", "images/s", "memory", "computes", "talks", "waits", "sums", "ranks", "plan"});
  int place = 0;
  for (const Candidate& c : result.best) {
    const Forecast& f = c.expected;
    table.row({std::to_string(++place), fmt::format("{:.3g}", c.images_per_second()), bytes(c.peak()),
               percent(f.computing, f.seconds), percent(f.talking, f.seconds), percent(f.waiting(), f.seconds),
               percent(f.summing + f.updating + f.reading, f.seconds), std::to_string(c.plan.ranks()),
               words_of(c.flags())});
  }
  fmt::print("{}", table.str());
  const Candidate& first = result.best.front();
  if (result.too_large)
    fmt::print("too large: {} would do {:.3g} images/s, but a rank needs {} of {}\n",
               words_of(result.too_large->flags()), result.too_large->images_per_second(),
               bytes(result.too_large->peak()), bytes(wish.memory));
  constexpr std::size_t some = 4;
  for (std::size_t i = 0; i < std::min(some, result.others.size()); ++i) {
    const auto& [kind, c] = result.others[i];
    const Forecast& f = c.expected;
    const double waits = f.waiting() + f.talking;
    fmt::print("slower: {}, {:.3g} images/s ({})\n", kind, c.images_per_second(),
               waits > 0.3 * f.seconds ? concat(percent(waits, f.seconds), " of a step is waiting and messages")
               : c.plan.ranks() < first.plan.ranks()
                   ? concat("it uses ", counted(c.plan.ranks(), "rank"))
                   : concat("its ranks compute for ", fmt::format("{:.3g}", f.computing),
                            " s per step, those of the first ", fmt::format("{:.3g}", first.expected.computing)));
  }
  if (first.plan.parts > 1 && !o.has("parts"))
    fmt::print("batch norm takes its statistics over micros of {}; --parts 1 keeps the batch whole\n",
               counted(first.plan.micro_size(), "image"));
}

std::string why_nothing_fits(const SearchResult& result, const SearchWish& wish) {
  const Candidate& c = *result.smallest;
  return concat("no plan fits into ", bytes(wish.memory), " per rank: of ", result.tried, " plans the smallest needs ",
                bytes(c.peak()), " (", words_of(c.flags()),
                "); use more --memory, more --ranks or a smaller --batch-size");
}

CellCosts costs_of(const Job& job, const Options& o, const std::vector<int>& threads, MeasuredCosts& measured) {
  if (at_hand(o)) {
    measured.try_cells(threads);
    return measured.costs();
  }
  const Rates rates =
      o.machine.empty() ? usual_rates(o.on_gpus(), 1, element_bytes(o)) : read_machine(o.machine, o.dtype).rates;
  return estimated_costs(job.graph, element_bytes(o), o.train.recompute, rates);
}

// What is expected of the time of each rank, as text for the other processes.
nlohmann::json expectation(const Candidate& c, const SearchWish& wish) {
  const Forecast f = forecast(c.plan, c.loads, wish.site(c.plan.ranks()), /*recorded=*/true);
  nlohmann::json teams = nlohmann::json::array();
  for (const TeamForecast& t : f.teams) {
    nlohmann::json actions = nlohmann::json::array();
    for (const ActionSpan& s : t.actions)
      actions.push_back({static_cast<int>(s.action.kind), s.action.stage, s.action.micro,
                         static_cast<int>(s.action.direction), s.begin, s.end});
    teams.push_back({{"ranks", t.ranks.size()},
                     {"seconds", f.seconds},
                     {"computing", t.computing},
                     {"parts", t.parts},
                     {"actions", std::move(actions)}});
  }
  return teams;
}

std::vector<RunReport::Expected> read_expectation(const nlohmann::json& teams) {
  std::vector<RunReport::Expected> ranks;
  for (const auto& t : teams) {
    RunReport::Expected e{.seconds = t.at("seconds"), .computing = t.at("computing"), .parts = t.at("parts")};
    for (const auto& a : t.at("actions"))
      e.actions.push_back({.action = {.kind = static_cast<Action::Kind>(a.at(0).get<int>()),
                                      .stage = a.at(1),
                                      .micro = a.at(2),
                                      .direction = static_cast<Direction>(a.at(3).get<int>())},
                           .begin = a.at(4),
                           .end = a.at(5)});
    ranks.insert(ranks.end(), t.at("ranks").get<std::size_t>(), e);
  }
  return ranks;
}

// On one process, for all: the curves, and the flags of the first point.
std::string found_scaling(const Job& job, const Options& o, const SearchWish& wish, const std::vector<int>& threads,
                          int cores) {
  MeasuredCosts measured(job, o, cores);
  const CellCosts costs = costs_of(job, o, threads, measured);
  const double begin = now_seconds();
  int tried = 0;
  const Scaling scaling = scaling_of(parse_scaling(o.scaling), o.plan.batch_size, [&](int ranks, std::int64_t batch) {
    SearchWish one = wish;
    one.ranks = {ranks};
    one.plan.batch_size = batch;
    SearchResult result = search_plans(job.graph, one, costs);
    tried += result.tried;
    return result;
  });
  const auto first = std::find_if(scaling.strong.begin(), scaling.strong.end(), [](const auto& p) { return p.best; });
  require(first != scaling.strong.end(), "--scaling ", o.scaling, ": ", scaling.strong.front().problem,
          "; use more ranks, more --memory or a smaller --batch-size");
  if (!o.quiet)
    fmt::print("{} plans tried in {:.1f} s, costs {}\n{}", tried, now_seconds() - begin,
               at_hand(o) ? "measured" : "estimated", scaling_tables(scaling));
  return nlohmann::json{{"flags", first->best->flags()}, {"scaling", scaling_json(scaling, job, o, at_hand(o))}}.dump();
}

// A plan that was found, as every process knows it.
struct Found {
  PlanFlags flags;
  double speed = 0;    // images/s
  double seconds = 0;  // of a step
  std::vector<RunReport::Expected> expected = {};
  bool tried = false;
};

nlohmann::json as_json(const std::vector<Candidate>& candidates, const Options& o, const SearchWish& wish) {
  nlohmann::json all = nlohmann::json::array();
  for (const Candidate& c : candidates)
    all.push_back({{"flags", c.flags()},
                   {"speed", c.images_per_second()},
                   {"seconds", c.expected.seconds},
                   {"expected", o.planning ? nlohmann::json::array() : expectation(c, wish)}});
  return all;
}

std::vector<Found> read_found(const nlohmann::json& candidates) {
  std::vector<Found> found;
  for (const auto& c : candidates)
    found.push_back({c.at("flags"), c.at("speed"), c.at("seconds"), read_expectation(c.at("expected"))});
  return found;
}

// On one process, for all.
std::string found_plan(const Job& job, const Options& o, const SearchWish& wish, const std::vector<int>& threads,
                       int cores) {
  const bool tries = at_hand(o);
  // What no plan can do is better said before anything is measured.
  if (tries) check_search(job.graph, wish);
  MeasuredCosts measured(job, o, cores);
  const CellCosts costs = costs_of(job, o, threads, measured);
  const double begin = now_seconds();
  SearchResult result = search_plans(job.graph, wish, costs);
  const double searched = now_seconds() - begin;
  if (result.best.empty()) {
    if (!fits_into_memory(o) || o.memory_limit) throw UsageError(why_nothing_fits(result, wish));
    result.large.push_back(*result.smallest);
    return nlohmann::json{{"large", as_json(result.large, o, wish)}, {"problem", why_nothing_fits(result, wish)}}
        .dump();
  }
  if (tries) {
    constexpr std::size_t most = 5;
    constexpr double near = 0.75;
    const double first = result.best.front().images_per_second();
    for (std::size_t i = 0; i < std::min(most, result.best.size()); ++i) {
      Candidate& c = result.best[i];
      if (c.images_per_second() < near * first) break;
      measured.try_stages(c);
      expect_from(c, wish);
    }
    // What was not tried out is known less well, and comes after what was.
    std::stable_sort(result.best.begin(), result.best.end(), [](const Candidate& a, const Candidate& b) {
      return a.measured != b.measured ? a.measured : a.images_per_second() > b.images_per_second();
    });
  }
  if (!o.quiet) {
    fmt::print("{} plans tried in {:.1f} s{}, {} impossible here\n", result.tried, searched,
               tries ? fmt::format(", costs measured in {:.1f} s", measured.seconds()) : ", costs estimated",
               result.refused);
    print_candidates(result, wish, o);
    std::fflush(stdout);
  }
  std::vector<Candidate> known;
  for (const Candidate& c : result.best)
    if (known.empty() || c.measured) known.push_back(c);
  return nlohmann::json{{"fitting", as_json(known, o, wish)}}.dump();
}

// Flags that were found, as if they had been given: a run that is resumed goes on with them.
void take_flags(Options& o, const PlanFlags& flags) {
  for (const auto& [name, value] : flags) {
    o.given[name] = value;
    if (name == "recompute") {
      o.recompute = value;
      o.train.recompute = parse_recompute(value);
    } else {
      set_flag(o.plan, name, value);
    }
  }
}

// Where no plan fits as it is: how fast they are with more recomputation, tiles in turn, or values that wait elsewhere.
// Which of these, fit_into_memory() finds once more for the plan that is chosen.
std::vector<Found> made_to_fit(const std::vector<Found>& large, const Job& job, const Options& o,
                               const Launch& launch) {
  std::vector<Found> fitting;
  for (Found plan : large) {
    plan.flags.erase("recompute");
    Options options = o;
    take_flags(options, plan.flags);
    Job one = job;
    settle_plan(one, options, launch);
    const auto longer = slowdown_to_fit(one, options, launch);
    if (!longer) continue;
    plan.speed /= *longer;
    plan.seconds *= *longer;
    plan.expected.clear();  // of other steps
    fitting.push_back(std::move(plan));
  }
  if (launch.speaks() && !o.quiet && !fitting.empty())
    fmt::print("no plan fits as it is; {} of {} can be made to fit\n", fitting.size(), large.size());
  return fitting;
}

// The speed of a few steps on the ranks of the run.
void try_out(Found& plan, const Job& job, const Options& o, const Launch& launch) {
  Options options = o;
  take_flags(options, plan.flags);
  const Spread speed = try_plan(job, options, launch);
  plan.speed = nlohmann::json::parse(launch.told([&] {
    if (!o.quiet)
      fmt::print("tried: {:.3g} images/s ({:.3g} to {:.3g}): {}\n", speed.median, speed.low, speed.high,
                 words_of(plan.flags));
    std::fflush(stdout);
    return nlohmann::json(speed.median).dump();
  }));
  plan.tried = true;
}

// Whoever seems to be the fastest is tried out, until that is somebody who was. Not if that would take minutes: then
// nobody is, for what was only expected is not comparable.
Found fastest(std::vector<Found> plans, const Job& job, const Options& o, const Launch& launch) {
  constexpr double too_slow = 10;  // seconds of a step
  const bool tries = o.training && !o.on_gpus() &&
                     std::all_of(plans.begin(), plans.end(), [&](const Found& p) { return p.seconds <= too_slow; });
  for (;;) {
    Found& first =
        *std::max_element(plans.begin(), plans.end(), [](const Found& a, const Found& b) { return a.speed < b.speed; });
    if (!tries || first.tried) return first;
    try_out(first, job, o, launch);
  }
}

}  // namespace

void choose_plan(Job& job, Options& o, const Launch& launch) {
  require(!o.has("turns") && !o.has("store"),
          "--auto does not search turns and stores; leave out --turns and --store, ", "or give the plan by hand");
  require(!o.has("num-hp") && !o.has("DP-ONLY"), "--auto does not search bundles; leave out --num-hp and --DP-ONLY");
  require(o.scaling.empty() || !o.batch_at_most, "--scaling says which batches there are; leave out --batch-at-most");
  require(!o.has("slice-method") || o.has("num-spatial-parts"),
          "--slice-method says how the tiles of --num-spatial-parts lie; give that too, or leave both to --auto");
  require(o.machine.empty() || o.planning, "--machine describes a machine that is not here; it is for tessera plan");
  constexpr int most_ranks = 65536;
  require(o.ranks.value_or(1) >= 1 && o.ranks.value_or(1) <= most_ranks, "--ranks ", o.ranks.value_or(1),
          " must be from 1 to ", most_ranks);
  if (o.ranks && !o.planning && launch.ranks_are_threads()) check_thread_ranks(*o.ranks);
  require(!o.batch_at_most || *o.batch_at_most >= o.plan.batch_size, "--batch-at-most ", o.batch_at_most.value_or(0),
          " is less than --batch-size ", o.plan.batch_size);
  SearchWish wish = wish_of(job, o, launch);
  const auto sites = sites_of(wish, job, o, launch);
  wish.site = [&](int ranks) { return sites.at(ranks); };
  std::set<int> threads;
  for (const int ranks : wish.ranks) {
    const auto beside = std::min<std::int64_t>(ranks, wish.plan.ranks_per_node.value_or(ranks));
    threads.insert(threads_of_rank(o, launch.cores(), beside));
  }
  // Stages that take turns have the cores for themselves.
  if (!o.threads) threads.insert({1, threads_of_rank(o, launch.cores(), 1)});
  if (wish.cores == 0) threads = {1};
  const std::string found = launch.told([&] {
    const std::vector<int> all(threads.begin(), threads.end());
    std::string text;
    apart(cores_to_measure_on(o, launch), [&] {
      text = o.scaling.empty() ? found_plan(job, o, wish, all, launch.cores())
                               : found_scaling(job, o, wish, all, launch.cores());
    });
    return text;
  });
  const auto document = nlohmann::json::parse(found);
  if (document.contains("scaling")) {
    job.scaling = document["scaling"].get<std::string>();
    return take_flags(o, document["flags"].get<PlanFlags>());
  }
  std::vector<Found> plans;
  if (document.contains("fitting"))
    plans = read_found(document["fitting"]);
  else
    plans = made_to_fit(read_found(document["large"]), job, o, launch);
  if (plans.empty()) throw UsageError(document["problem"].get<std::string>());
  const Found best = fastest(std::move(plans), job, o, launch);
  if (launch.speaks() && !o.quiet) fmt::print("chosen: {}\n", words_of(best.flags));
  take_flags(o, best.flags);
  job.expected = best.expected;
  job.expected_speed = best.speed;
}

}  // namespace tessera
