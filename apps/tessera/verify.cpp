#include <fmt/core.h>

#include "commands.h"
#include "run.h"
#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/oracle/verify.h"

namespace tessera {

void run_verify(Options& options, const ModelRegistry& models, const Launch& launch) {
  if (!options.steps) options.steps = 3;
  const Job job = make_job(options, models, launch);
  if (launch.speaks()) check_writable("--json", options.json);
  install_cpu_allocator();
  const double tolerance = options.tolerance > 0 ? options.tolerance : verify_tolerance(options.train.dtype);
  const VerifyReport report = run_verification(options, job, launch, tolerance);
  if (launch.speaks() && !options.quiet) {
    const bool one = job.plan.ranks() == 1;
    Table table({"largest differences", "step", "relative"});
    for (std::size_t i = 0; i < std::min<std::size_t>(10, report.differences.size()); ++i)
      table.row({report.differences[i].what, std::to_string(report.differences[i].step + 1),
                 fmt::format("{:.2e}", report.differences[i].relative)});
    fmt::print("{} in {}, {} of {} against {}, {} tensors compared\n{}", options.model.name, options.dtype,
               counted(job.steps, "step"), one ? "one rank" : fmt::format("{} ranks", job.plan.ranks()),
               one ? "torch's autograd" : "sequential training", report.compared, table.str());
    fmt::print("{}: the largest is {:.2e}, the tolerance {:.0e}\n", report.passed ? "equal" : "NOT EQUAL",
               report.largest, tolerance);
    std::fflush(stdout);
  }
  if (launch.speaks() && !options.json.empty()) write_verification(options.json, report, job.plan, job.graph);
  if (!report.passed)
    throw Error(concat("the plan does not train like one device: ", report.differences.front().what, " differs by ",
                       report.largest, " at step ", report.differences.front().step + 1));
}

}  // namespace tessera
