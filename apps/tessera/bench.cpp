// `tessera bench`: the seeds' benchmarks, each a plan with its own defaults. The plan is verified before it is timed.
#include <fmt/core.h>

#include <algorithm>

#include "commands.h"
#include "run.h"
#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/io/trace.h"
#include "tessera/schedule/simulator.h"

namespace tessera {
namespace {

// The size at which a plan is verified: the same plan trains the same nodes, and what one device could not hold in
// float64, or only in minutes, shows nothing that a small image does not. Every tile keeps 64 pixels on each side.
std::string verified_size(const Plan& plan, const Shape& image) {
  std::int64_t most = 256;
  for (const auto& stage : plan.stages)
    most = std::max<std::int64_t>({most, 64 * stage.grid.rows, 64 * stage.grid.columns});
  return concat(std::min(image.height, most), "x", std::min(image.width, most));
}

// In float64, so that an inexact plan shows; one step, because it is the same step over and over.
void verify_first(const Options& options, const Plan& plan, const ModelRegistry& models, const Launch& launch) {
  Options exact = options;
  exact.dtype = "float64";
  exact.steps = 1;
  exact.image_size = verified_size(plan, options.model.image);
  exact.memory_limit.reset();
  exact.memory.reset();
  const Job job = make_job(exact, models, launch);
  const VerifyReport report = run_verification(exact, job, launch);
  if (!report.passed)
    throw Error(
        concat(why_not_equal(report), "; there is nothing to time (--skip-verification times it all the same)"));
  if (launch.speaks() && !options.quiet) {
    fmt::print("verified: one step in float64 at {} differs from one device's by {:.1e} at most\n", exact.image_size,
               report.largest);
    std::fflush(stdout);
  }
}

}  // namespace

void apply_bench_defaults(const std::string& family, Options& options) {
  PlanOptions& plan = options.plan;
  options.steps = 10;
  plan.batch_size = 32;
  plan.split_size = 2;
  if (family == "spatial" || family == "gems-spatial") {
    plan.num_spatial_parts = "4";
    plan.spatial_size = 1;
  }
  if (family == "gems" || family == "gems-spatial") plan.times = 1;
  if (family == "bundle") {
    plan.num_hp = 2;
    plan.grad_sync = "hierarchical";
  }
}

void run_bench(Options& options, const std::string& family, const ModelRegistry& models, const Launch& launch) {
  const Job job = make_job(options, models, launch);
  if (launch.speaks()) {
    check_writable("--json", options.json);
    check_writable("--trace", options.trace);
  }
  install_cpu_allocator();
  if (launch.speaks() && !options.quiet) {
    fmt::print("bench {}: {} on {}\n{}", family, options.model.name, job.images->describe(),
               plan_table(job.plan, job.graph, element_bytes(options)));
    if (!job.transport_words.empty()) fmt::print("GPUs: {}\n", job.transport_words);
  }
  if (!options.skip_verification) verify_first(options, job.plan, models, launch);
  const RunReport report =
      run_training(options, job, launch, {.quiet = true, .every_step = false, .record = !options.trace.empty()});
  if (!launch.speaks()) return;
  // Fewer steps than asked for are no figure.
  if (report.stopped) throw Error(concat("stopped by a signal after step ", *report.stopped, " of ", job.steps));
  const Spread speed = images_per_second(report.steps, job.plan.global_batch());
  fmt::print("{} (median of {}; {} to {}), loss {:.4f} -> {:.4f}\n{}", human_speed(speed.median),
             counted(static_cast<std::int64_t>(report.steps.size()) - 1, "step"), human_speed(speed.low),
             human_speed(speed.high), report.steps.front().loss, report.steps.back().loss,
             breakdown_table(report, job.plan));
  if (job.plan.stages.size() > 1)
    fmt::print("idle: {:.0f} % of the ranks' time; simulated {:.0f} %\n", 100 * idle_share(report),
               100 * simulate(job.plan, make_schedule(job.plan), stage_costs(job.plan, job.graph)).idle());
  if (!options.json.empty()) write_report(options.json, report, job.plan, job.graph);
  if (!options.trace.empty()) write_trace(options.trace, report, job.plan, job.graph);
}

}  // namespace tessera
