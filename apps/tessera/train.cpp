#include <ATen/Parallel.h>
#include <fmt/core.h>

#include <algorithm>

#include "commands.h"
#include "progress.h"
#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/io/report.h"

namespace tessera {
namespace {

void describe(const Options& options, const Job& job) {
  fmt::print("{} on {}, {} trainable parameters, {}, {} {}\n", options.model.name, job.images->describe(),
             human_count(static_cast<double>(job.graph.trainable_elements())), options.dtype, job.threads,
             job.threads == 1 ? "thread" : "threads");
  if (options.verbose) fmt::print("{}", plan_table(job.plan, job.graph, options.dtype == "float64" ? 8 : 4));
  std::fflush(stdout);
}

void train_rank(const Options& options, const Job& job, bool speaks, RunReport& report) {
  at::set_num_threads(job.threads);
  const auto account = std::make_shared<MemoryAccount>();
  const MemoryScope scope(account);
  Trainer trainer(job.graph, job.plan, options.train, job.images);
  Progress progress({job.steps, job.plan.batch_size, options.quiet || !speaks, options.verbose});
  try {
    for (std::int64_t s = 0; s < job.steps; ++s) {
      report.steps.push_back(trainer.step());
      progress.step(report.steps.back(), account->peak_bytes());
    }
  } catch (...) {
    progress.finish();  // the message starts on a line of its own
    throw;
  }
  progress.finish();
  report.peak_bytes = {account->peak_bytes()};
}

}  // namespace

void run_train(Options& options, const ModelRegistry& models, const Launch& launch, int argc, char** argv) {
  const Job job = make_job(options, models, launch.ranks_started(), launch.ranks_on_node());
  if (!options.json.empty() && launch.speaks()) check_writable(options.json);
  install_cpu_allocator();
  if (launch.speaks() && !options.quiet) describe(options, job);

  RunReport report;
  report.command.assign(argv, argv + argc);
  report.model = options.model.name;
  report.dtype = options.dtype;
  report.threads = job.threads;
  launch.run(job.plan.ranks(), [&](Communicator&) { train_rank(options, job, launch.speaks(), report); });

  if (!launch.speaks()) return;
  const Spread speed = images_per_second(report.steps, job.plan.batch_size);
  if (!options.quiet)
    fmt::print("{} steps, loss {:.4f} -> {:.4f}, {:.1f} images/s (median; {:.1f} to {:.1f}), peak memory {}\n",
               report.steps.size(), report.steps.front().loss, report.steps.back().loss, speed.median, speed.low,
               speed.high, human_bytes(report.peak_bytes.front()));
  if (!options.json.empty()) write_report(options.json, report, job.plan, job.graph);
}

}  // namespace tessera
