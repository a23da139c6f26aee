// Plans against each other on this machine, in one run: speed and peak bytes of tensors, as ratios to the first plan of
// a group. Ranks are threads. Machines have other work, so every round of a plan comes right after one of the first.
//
//     bench_plans [--group NAME] [--rounds N] [--steps N] [--limit MIB] [--json FILE]
//
// The group largest-batch asks another question: how large a batch each schedule trains before a rank needs more than
// the limit.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "tessera/base/text.h"
#include "tessera/comm/threads/thread_communicator.h"
#include "tessera/data/synthetic.h"
#include "tessera/models/registry.h"
#include "tessera/ops/way_choices.h"
#include "tessera/runtime/conv_trials.h"
#include "tessera/runtime/memory.h"
#include "tessera/runtime/threads.h"
#include "tessera/runtime/trainer.h"

using namespace tessera;

namespace {

struct Contender {
  std::string name;
  PlanOptions plan;
  int threads = 0;  ///< of each rank; 0: the cores shared out to the ranks that work at the same time
};

struct Group {
  std::string name;
  ModelOptions model;
  std::vector<Contender> contenders;  ///< the first is the reference
};

struct Figures {
  std::vector<double> images_per_second;  // by round
  std::vector<std::int64_t> peak_bytes;   // by rank
  std::vector<int> threads;               // by rank
};

std::int64_t largest(const Figures& f) { return *std::max_element(f.peak_bytes.begin(), f.peak_bytes.end()); }

// Steps that do not count: they pay for memory and the choice of kernels.
constexpr int warm_up = 3;

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void run_round(const Graph& graph, const Group& group, const Contender& contender, int steps, Figures& figures) {
  const Plan plan = make_plan(graph, contender.plan);
  const Shape& image = group.model.image;
  const auto images = std::make_shared<SyntheticImages>(
      SyntheticOptions{.classes = 10, .height = image.height, .width = image.width, .size = 256, .seed = 1});
  std::vector<double> seconds;
  figures.peak_bytes.assign(static_cast<std::size_t>(plan.ranks()), 0);
  figures.threads.clear();
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  for (int rank = 0; rank < plan.ranks(); ++rank)
    figures.threads.push_back(contender.threads > 0 ? contender.threads
                                                    : std::max(1, cores / plan.ranks_at_work_beside(rank)));
  try_convolutions({.graph = graph, .plan = plan, .threads = figures.threads, .activations = at::kFloat});
  run_thread_ranks(plan.ranks(), [&](Communicator& world) {
    const auto me = static_cast<std::size_t>(world.rank().value);
    use_threads(figures.threads[me], world.size());
    const auto account = std::make_shared<MemoryAccount>();
    const MemoryScope scope(account);
    Trainer trainer(graph, plan, {.steps = steps, .seed = 1, .loader_workers = 0}, images, &world);
    for (int s = 0; s < warm_up; ++s) trainer.step();
    for (int s = 0; s < steps; ++s) {
      const StepReport report = trainer.step();
      if (world.rank() == Rank{0}) seconds.push_back(report.seconds);
    }
    figures.peak_bytes[me] = account->peak_bytes();
  });
  figures.images_per_second.push_back(static_cast<double>(plan.global_batch()) / median(seconds));
}

// "5 x 1..2": so many ranks of so many threads.
std::string ranks_and_threads(const Figures& f) {
  const auto [fewest, most] = std::minmax_element(f.threads.begin(), f.threads.end());
  return fmt::format("{} x {}", f.threads.size(), *fewest) + (*fewest == *most ? "" : fmt::format("..{}", *most));
}

// The largest effective batch, of the powers of two up to a bound, in micros of one sample on four stages.
void print_largest_batches(double limit_mib) {
  const Group group{"largest-batch", {.name = "resnet_v2", .image = {3, 128, 128}, .classes = 10, .depth = 56}, {}};
  const Graph graph = builtin_models().build(group.model);
  constexpr std::int64_t bound = 64;
  Table table({"schedule", "largest batch", "its peak", "the next one's"});
  for (const std::string schedule : {"gpipe", "1f1b", "gems-mast", "gems-master", "chimera"}) {
    std::int64_t fits = 0, peak = 0, next = 0;
    for (std::int64_t batch = 2; batch <= bound && next == 0; batch *= 2) {
      PlanOptions plan{.batch_size = batch, .parts = batch, .split_size = 4, .schedule = schedule};
      if (schedule == "gems-mast") plan.batch_size = plan.parts = batch / 2;
      if (schedule == "gems-master") {
        plan.batch_size = plan.parts = 1;
        plan.times = batch / 2;
      }
      Figures figures;
      run_round(graph, group, {schedule, plan}, 1, figures);
      if (static_cast<double>(largest(figures)) > limit_mib * 1024 * 1024) {
        next = largest(figures);
      } else {
        fits = batch;
        peak = largest(figures);
      }
    }
    table.row({schedule, fits == bound ? fmt::format("{} and more", fits) : std::to_string(fits),
               fits > 0 ? human_bytes(peak) : "-", next > 0 ? human_bytes(next) : "-"});
  }
  fmt::print("{}: {} at {}x{}, 4 stages, micros of one image, at most {} MiB a rank\n{}\n", group.name,
             group.model.name, group.model.image.height, group.model.image.width, limit_mib, table.str());
}

// The seeds' own balance of two stages.
std::string halves(const ModelOptions& model) {
  const std::size_t cells = builtin_models().build(model).cells().size();
  return fmt::format("{},{}", cells / 2, cells - cells / 2);
}

std::vector<Group> groups() {
  const ModelOptions v2{.name = "resnet_v2", .image = {3, 512, 512}, .classes = 10, .depth = 110};
  const ModelOptions r50{.name = "resnet50", .image = {3, 512, 512}, .classes = 10};
  const ModelOptions stages{.name = "resnet_v2", .image = {3, 128, 128}, .classes = 10, .depth = 56};
  std::vector<Group> out;
  for (const auto& [name, model] : {std::pair{"spatial-resnet_v2", v2}, std::pair{"spatial-resnet50", r50}})
    out.push_back({name,
                   model,
                   {{"one rank", {.batch_size = 1}},
                    {"1x2 tiles", {.batch_size = 1, .grid = "1x2"}},
                    {"2x1 tiles", {.batch_size = 1, .grid = "2x1"}},
                    {"2x2 tiles", {.batch_size = 1, .grid = "2x2"}},
                    {"2x2 tiles + 1", {.batch_size = 1, .split_size = 2, .num_spatial_parts = "4"}},
                    {"2x2 tiles + 1, half the cells each",
                     {.batch_size = 1, .split_size = 2, .balance = halves(model), .num_spatial_parts = "4"}}}});
  out.push_back(
      {"pipeline",
       stages,
       {{"layer parallelism", {.batch_size = 16, .split_size = 2}, 1},
        {"gpipe, 8 micros", {.batch_size = 16, .parts = 8, .split_size = 2, .schedule = "gpipe"}, 1},
        {"1f1b, 8 micros", {.batch_size = 16, .parts = 8, .split_size = 2}, 1},
        {"zero-bubble, 8 micros", {.batch_size = 16, .parts = 8, .split_size = 2, .schedule = "zero-bubble"}, 1},
        {"layer parallelism, all cores", {.batch_size = 16, .split_size = 2}}}});
  out.push_back({"pipeline-memory",
                 stages,
                 {{"gpipe, 4 stages", {.batch_size = 8, .parts = 8, .split_size = 4, .schedule = "gpipe"}},
                  {"1f1b, 4 stages", {.batch_size = 8, .parts = 8, .split_size = 4}}}});
  out.push_back({"replicas",
                 stages,
                 {{"one rank", {.batch_size = 16, .parts = 2}}, {"2 replicas", {.batch_size = 8, .replicas = 2}}}});
  out.push_back({"bidirectional-memory",
                 stages,
                 {{"gpipe, batch 4", {.batch_size = 4, .parts = 4, .split_size = 4, .schedule = "gpipe"}},
                  {"1f1b, batch 4", {.batch_size = 4, .parts = 4, .split_size = 4}},
                  {"gems-mast, batch 4", {.batch_size = 2, .parts = 2, .split_size = 4, .schedule = "gems-mast"}},
                  {"gems-master x2, batch 4", {.batch_size = 1, .split_size = 4, .times = 2}},
                  {"chimera, batch 4", {.batch_size = 4, .parts = 4, .split_size = 4, .schedule = "chimera"}}}});
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  std::string only, json, conv_choice = "measured";
  int rounds = 3, steps = 5;
  double limit = 64;
  CLI::App app{"Plans against each other"};
  app.add_option("--group", only, "one group; all by default");
  app.add_option("--rounds", rounds)->check(CLI::Range(1, 1000))->capture_default_str();
  app.add_option("--steps", steps, fmt::format("in each round, after {} that do not count", warm_up))
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--limit", limit, "largest-batch: MiB of a rank")->capture_default_str();
  app.add_option("--conv-choice", conv_choice, "as tessera's: measured or fixed")->capture_default_str();
  app.add_option("--json", json, "write the figures to this file");
  CLI11_PARSE(app, argc, argv);
  WayChoices::of_process().choose_by(conv_choice);
  install_cpu_allocator();
  nlohmann::ordered_json document;
  for (const Group& group : groups()) {
    if (!only.empty() && group.name != only) continue;
    const Graph graph = builtin_models().build(group.model);
    std::vector<Figures> figures(group.contenders.size());
    std::vector<std::vector<double>> speed_ratios(figures.size());
    speed_ratios[0] = {1};
    Figures& reference = figures[0];
    for (int r = 0; r < rounds; ++r)
      for (std::size_t c = 1; c < figures.size(); ++c) {
        run_round(graph, group, group.contenders[0], steps, reference);
        run_round(graph, group, group.contenders[c], steps, figures[c]);
        speed_ratios[c].push_back(figures[c].images_per_second.back() / reference.images_per_second.back());
      }
    Table table({"plan", "ranks x threads", "images/s", "speed ratio", "peak, first rank", "peak, largest",
                 "ratio, first", "ratio, largest"});
    for (std::size_t c = 0; c < figures.size(); ++c) {
      const Figures& f = figures[c];
      const double speed = median(f.images_per_second), speed_ratio = median(speed_ratios[c]);
      const auto ratio = [](std::int64_t a, std::int64_t b) { return static_cast<double>(a) / static_cast<double>(b); };
      table.row({group.contenders[c].name, ranks_and_threads(f), fmt::format("{:.3f}", speed),
                 fmt::format("{:.2f}", speed_ratio), human_bytes(f.peak_bytes[0]), human_bytes(largest(f)),
                 fmt::format("{:.3f}", ratio(f.peak_bytes[0], reference.peak_bytes[0])),
                 fmt::format("{:.3f}", ratio(largest(f), largest(reference)))});
      document[group.name].push_back({{"plan", group.contenders[c].name},
                                      {"images_per_second", speed},
                                      {"speed_ratio", speed_ratio},
                                      {"peak_bytes", f.peak_bytes}});
    }
    fmt::print("{}: {} at {}x{}\n{}\n", group.name, group.model.name, group.model.image.height, group.model.image.width,
               table.str());
    std::fflush(stdout);
  }
  if (only.empty() || only == "largest-batch") print_largest_batches(limit);
  if (!json.empty()) std::ofstream(json) << document.dump(2) << '\n';
}
