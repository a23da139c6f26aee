#include "tessera/oracle/verify.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "commands.h"
#include "run.h"
#include "tessera/base/error.h"
#include "tessera/base/text.h"

namespace tessera {
namespace {

std::string difference_table(const VerifyReport& report) {
  const bool rounding = report.beyond_tolerance > 0;
  std::vector<std::string> head{"largest differences", "step", "relative"};
  if (rounding) head.emplace_back("by rounding");
  Table table(head);
  for (std::size_t i = 0; i < std::min<std::size_t>(10, report.differences.size()); ++i) {
    const auto& d = report.differences[i];
    std::vector<std::string> row{d.what, std::to_string(d.step + 1), fmt::format("{:.2e}", d.relative)};
    if (rounding) row.push_back(d.rounding > 0 ? fmt::format("{:.2e}", d.rounding) : "-");
    table.row(row);
  }
  return table.str();
}

std::string verdict(const VerifyReport& report) {
  if (!report.passed) return concat("NOT EQUAL: ", why_not_equal(report));
  if (report.beyond_tolerance == 0)
    return fmt::format("equal: the largest is {:.2e}, the tolerance {:.0e}", report.largest, report.tolerance);
  // The first that rounding has to explain: nearer to their limit may be some that the tolerance explains.
  const auto& d = *std::find_if(report.differences.begin(), report.differences.end(),
                                [&](const auto& each) { return each.relative > report.tolerance; });
  return fmt::format(
      "equal: {} of {} differ by more than the tolerance {:.0e}, but none by more than {:.0f} times what changing the "
      "last bits of images and parameters does to one device; the nearest to that is {}, {:.1f} times",
      report.beyond_tolerance, report.differences.size(), report.tolerance, report.factor, d.what,
      d.relative / d.rounding);
}

}  // namespace

std::string why_not_equal(const VerifyReport& report) {
  const auto& d = report.differences.front();
  if (d.relative > d.allowed)
    return fmt::format("the plan does not train like one device: {} differs by {:.2e} at step {}, where rounding {}",
                       d.what, d.relative, d.step + 1,
                       d.rounding > 0 ? fmt::format("makes {:.2e}", d.rounding) : "makes nothing of the kind");
  return fmt::format(
      "rounding hides whether the plan trains like one device: {} of {} tensors would pass with an error of a tenth; "
      "use "
      "--dtype float64, fewer --steps, a smaller --lr, or larger micros (a larger --batch-size or fewer --parts)",
      report.hidden, report.differences.size());
}

VerifyReport run_verification(const Options& options, const Job& job, const Launch& launch, double tolerance) {
  require(options.train.dtype != at::kBFloat16,
          "bfloat16 has too few digits to compare; use --dtype float32 or float64");
  const VerifyOptions rules{.tolerance = tolerance > 0 ? tolerance : verify_tolerance(options.train.dtype),
                            .foreign = job.foreign ? job.foreign->reference() : nullptr};
  Verification result;
  prepare_gpus(options, job, /*passes=*/1);
  run_ranks(options, job, launch, [&](Communicator& world) {
    Verification mine = verify(job.graph, job.plan, options.train, job.images, &world, rules);
    if (world.rank() == Rank{0} || !launch.ranks_are_threads()) result = std::move(mine);
  });
  VerifyReport report{.passed = result.equal(),
                      .tolerance = rules.tolerance,
                      .factor = rules.factor,
                      .largest = result.largest(),
                      .compared = result.compared,
                      .beyond_tolerance = result.beyond_tolerance,
                      .hidden = result.hidden,
                      .differences = {}};
  for (const auto& d : result.worst) report.differences.push_back({d.what, d.step, d.relative, d.rounding, d.allowed});
  return report;
}

void run_verify(Options& options, const ModelRegistry& models, const Launch& launch) {
  if (!options.steps) options.steps = 3;
  const Job job = make_job(options, models, launch);
  if (launch.speaks()) check_writable("--json", options.json);
  install_cpu_allocator();
  const VerifyReport report = run_verification(options, job, launch, options.tolerance);
  if (launch.speaks() && !options.quiet) {
    const bool one = job.plan.ranks() == 1;
    fmt::print(
        "{} in {}, {} of {} against {}, {} tensors compared\n{}{}\n", options.model.name, options.dtype,
        counted(job.steps, "step"), one ? "one rank" : fmt::format("{} ranks", job.plan.ranks()),
        one ? (job.foreign ? "the module itself, by torch's autograd" : "torch's autograd") : "sequential training",
        report.compared, difference_table(report), verdict(report));
    std::fflush(stdout);
  }
  if (launch.speaks() && !options.json.empty()) write_verification(options.json, report, job.plan, job.graph);
  if (!report.passed) throw Error(why_not_equal(report));
}

}  // namespace tessera
