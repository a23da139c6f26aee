#include <ATen/Parallel.h>
#include <fmt/core.h>

#include "commands.h"
#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/io/report.h"
#include "tessera/oracle/verify.h"

namespace tessera {

void run_verify(Options& options, const ModelRegistry& models, const Launch& launch) {
  if (!options.steps) options.steps = 3;
  const Job job = make_job(options, models, launch.ranks_started(), launch.ranks_on_node());
  if (!options.json.empty() && launch.speaks()) check_writable(options.json);
  install_cpu_allocator();
  const double tolerance = options.tolerance > 0 ? options.tolerance : verify_tolerance(options.train.dtype);
  Verification result;
  launch.run(job.plan.ranks(), [&](Communicator&) {
    at::set_num_threads(job.threads);
    result = verify_against_autograd(job.graph, job.plan, options.train, job.images);
  });
  if (!launch.speaks()) return;

  const bool passed = result.largest() <= tolerance;
  if (!options.quiet) {
    Table table({"largest differences", "step", "relative"});
    for (std::size_t i = 0; i < std::min<std::size_t>(10, result.worst.size()); ++i)
      table.row({result.worst[i].what, std::to_string(result.worst[i].step + 1),
                 fmt::format("{:.2e}", result.worst[i].relative)});
    fmt::print("{} in {}, {} steps against torch's autograd, {} tensors compared\n{}", options.model.name,
               options.dtype, job.steps, result.compared, table.str());
    fmt::print("{}: the largest is {:.2e}, the tolerance {:.0e}\n", passed ? "equal" : "NOT EQUAL", result.largest(),
               tolerance);
    std::fflush(stdout);
  }
  if (!options.json.empty()) {
    VerifyReport report{passed, tolerance, result.largest(), result.compared, {}};
    for (const auto& d : result.worst) report.differences.push_back({d.what, d.step, d.relative});
    write_verification(options.json, report, job.plan, job.graph);
  }
  if (!passed)
    throw Error(concat("the plan does not train like one device: ", result.worst.front().what, " differs by ",
                       result.largest(), " at step ", result.worst.front().step + 1));
}

}  // namespace tessera
