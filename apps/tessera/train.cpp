#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <set>

#include "commands.h"
#include "data_sets.h"
#include "description.h"
#include "evaluation.h"
#include "flags.h"
#include "run.h"
#include "run_log.h"
#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/io/file.h"
#include "tessera/io/trace.h"

namespace tessera {
namespace {

void describe(const Options& options, const Job& job, const Start& start) {
  const auto [fewest, most] = std::minmax_element(job.threads.begin(), job.threads.end());
  const std::string threads = *fewest == *most ? std::to_string(*fewest) : fmt::format("{} to {}", *fewest, *most);
  fmt::print("{} on {}, {} trainable parameters, {}, {} {} of {} {}, batch {}\n", options.model.name,
             job.images->describe(), human_count(static_cast<double>(job.graph.trainable_elements())), options.dtype,
             job.plan.ranks(), job.plan.ranks() == 1 ? "rank" : "ranks", threads, threads == "1" ? "thread" : "threads",
             job.plan.global_batch());
  if (options.verbose) fmt::print("{}", plan_table(job.plan, job.graph, element_bytes(options)));
  std::set<int> nodes;
  for (const Cores& cores : job.cores) nodes.insert(cores.nodes.begin(), cores.nodes.end());
  if (!nodes.empty()) fmt::print("ranks keep to {}\n", counted(static_cast<std::int64_t>(nodes.size()), "NUMA node"));
  if (!job.transport_words.empty()) fmt::print("GPUs: {}\n", job.transport_words);
  fmt::print("{}", start.message);
  if (options.evaluation.each_epoch && !job.validation)
    fmt::print("no validation set, so nothing is evaluated; --val-share 0.1 holds out a tenth of the images\n");
  const std::int64_t images = job.images->size(), steps = images / job.plan.global_batch();
  constexpr std::int64_t few_steps = 5;
  if (app_name(options.app) == "medical" && steps < few_steps && !options.has("batch-size") && !options.has("steps"))
    fmt::print("{} in batches of {} are {} per epoch; a smaller --batch-size gives more\n", counted(images, "image"),
               job.plan.global_batch(), counted(steps, "step"));
  std::fflush(stdout);
}

// What a person does next.
void say_what_is_kept(const Options& options) {
  const std::string& folder = options.checkpoints.dir;
  if (folder.empty()) {
    if (options.log_dir.empty() && !options.datapath.empty() && options.run_dir != "none")
      fmt::print("nothing of this run is kept; --run DIR keeps weights and log\n");
    return;
  }
  fmt::print("kept in {}. Next: tessera eval {} --datapath OTHER, tessera predict {} --datapath NEW", folder, folder,
             folder);
  if (!options.run_dir.empty()) fmt::print(", tessera report {}", folder);
  fmt::print("\n");
}

// runs/1, runs/2, ...: whoever trains on a data set wants the result. If the run cannot start after all, it goes.
class NewRunFolder {
 public:
  NewRunFolder(Options& options, const Launch& launch) : launch_(launch) {
    if (!wants_new_run_folder(options)) return;
    folder_ = launch.told(make_run_folder);
    options.run_dir = folder_;
    if (!options.checkpoints.keep) options.checkpoints.keep = 2;
    apply_run_folder(options);
  }
  ~NewRunFolder() {
    // Only if they are still empty.
    if (!folder_.empty() && launch_.speaks() && ::rmdir(folder_.c_str()) == 0) ::rmdir(parent_of(folder_).c_str());
  }
  NewRunFolder(const NewRunFolder&) = delete;
  NewRunFolder& operator=(const NewRunFolder&) = delete;

 private:
  const Launch& launch_;
  std::string folder_;
};

// What the checkpoint says of itself, where the run goes on from one. What is wrong with it, or changes the numbers,
// find_start() will say.
void take_description_of_run(Options& options) {
  const CheckpointOptions& o = options.checkpoints;
  if (o.resume.empty()) return;
  try {
    take_description(options, o.resume == "auto" ? o.dir : o.resume, [](const std::string&) {});
  } catch (const UsageError&) {
    throw;
  } catch (const Error&) {
  }
}

}  // namespace

void run_train(Options& options, const ModelRegistry& models, const Launch& launch) {
  options.training = true;
  take_description_of_run(options);
  const NewRunFolder folder(options, launch);
  const Job job = make_job(options, models, launch);
  launch.told([&] {
    check_writable("--json", options.json);
    check_writable("--trace", options.trace);
    check_log_dir(options.log_dir, !options.checkpoints.resume.empty());
    return std::string();
  });
  install_cpu_allocator();
  const Start start = find_start(options, job, launch);
  const bool prints = launch.speaks() && !options.quiet;
  if (prints) describe(options, job, start);
  if (start.step >= job.steps) {
    if (prints) fmt::print("all {} steps are done; for more, give more --steps or --num-epochs\n", job.steps);
    return;
  }

  const RunReport report =
      run_training(options, job, launch,
                   {.quiet = options.quiet, .every_step = options.verbose, .record = !options.trace.empty()}, start);
  if (!launch.speaks()) return;
  const Spread speed = images_per_second(report.steps, job.plan.global_batch());
  if (!options.quiet) {
    const auto number = [](double images) {
      const std::string text = human_speed(images);
      return text.substr(0, text.find(' '));
    };
    fmt::print("{}, loss {:.4f} -> {:.4f}, {} (median; {} to {}), peak memory {}{}\n",
               counted(static_cast<std::int64_t>(report.steps.size()), "step"), report.steps.front().loss,
               report.steps.back().loss, human_speed(speed.median), number(speed.low), number(speed.high),
               human_bytes(*std::max_element(report.peak_bytes.begin(), report.peak_bytes.end())),
               report.peak_bytes.size() > 1 ? " per rank" : "");
    if (job.expected_speed)
      fmt::print("--auto expected {}, {:.2f} of what was measured\n", human_speed(*job.expected_speed),
                 *job.expected_speed / speed.median);
    if (!report.evaluations.empty())
      fmt::print("{}", evaluation_table(report.evaluations.back().result, job.class_names));
    if (options.verbose) fmt::print("{}", breakdown_table(report, job.plan));
    if (!report.stopped) say_what_is_kept(options);
  }
  if (!options.json.empty()) write_report(options.json, report, job.plan, job.graph);
  if (!options.trace.empty()) write_trace(options.trace, report, job.plan, job.graph);
  if (report.stopped)
    throw Error(concat("stopped by a signal after step ", *report.stopped, " of ", job.steps, "; ",
                       options.checkpoints.dir.empty() ? "use --run DIR to be able to resume a run"
                                                       : "give the same line with --resume auto to resume it"));
}

}  // namespace tessera
