#include <fmt/core.h>

#include "commands.h"
#include "memory_fit.h"
#include "scaling.h"
#include "tessera/base/text.h"
#include "tessera/io/report.h"
#include "tessera/schedule/timeline.h"

namespace tessera {

namespace {

void print_plan(const Options& options, const Job& job, const std::vector<Footprint>& needs) {
  fmt::print("{}", plan_table(job.plan, job.graph, element_bytes(options)));
  if (!job.transport_words.empty()) fmt::print("GPUs: {}\n", job.transport_words);
  Table memory({"rank", "stages", "parameters", "images", "activations", "memory"});
  const auto bytes = [](double b) { return human_bytes(static_cast<std::int64_t>(b)); };
  for (std::size_t r = 0; r < needs.size(); ++r) {
    std::vector<std::string> stages;
    for (const auto& place : job.plan.first_places_of(static_cast<int>(r)))
      stages.push_back(fmt::format("{}{}", place.stage, place.direction == Direction::up ? "'" : ""));
    memory.row({std::to_string(r), join(stages, " "), bytes(needs[r].parameters), bytes(needs[r].images),
                bytes(needs[r].activations), bytes(needs[r].peak())});
  }
  fmt::print("\n{}", memory.str());
  if (options.timeline)
    fmt::print("\n{}",
               timeline(job.plan, simulate(job.plan, make_schedule(job.plan), stage_costs(job.plan, job.graph))));
  if (options.verbose) {
    Table table({"cell", "nodes", "output", "parameters", "GFLOP, one micro"});
    const auto& nodes = job.graph.nodes();
    for (std::size_t c = 0; c < job.graph.cells().size(); ++c) {
      std::int64_t count = 0, parameters = 0;
      Cost cost;
      Shape last;
      for (const auto& node : nodes) {
        if (node.cell != static_cast<int>(c)) continue;
        ++count;
        last = node.shape;
        cost += job.graph.cost(node, job.plan.micro_size());
        for (const auto& spec : node.parameters) parameters += spec.trainable ? spec.elements() : 0;
      }
      table.row({job.graph.cells()[c].name, std::to_string(count),
                 fmt::format("{}x{}x{}", last.channels, last.height, last.width),
                 human_count(static_cast<double>(parameters)), fmt::format("{:.3f}", cost.flops() / 1e9)});
    }
    fmt::print("\n{}", table.str());
  }
}

}  // namespace

void run_plan(Options& options, const ModelRegistry& models, const Launch& launch) {
  options.on_bad_image = "fail";  // images are not looked through; --auto reads a part of the first
  options.planning = true;
  if (!options.scaling.empty()) {
    require(options.plan_file.empty(), "--scaling ", options.scaling, " looks for plans, and --plan ",
            options.plan_file, " names one; leave one of them out");
    options.automatic = true;
    check_writable("--json", options.json);
  }
  const Job job = make_job(options, models, launch);
  if (!launch.speaks()) return;
  if (!job.scaling.empty()) {
    if (!options.json.empty()) write_scaling(options.json, job.scaling);
    return;
  }
  const auto needs = memory_needs(job, options);
  if (!options.quiet) print_plan(options, job, needs);
  if (!options.json.empty()) {
    check_writable("--json", options.json);
    write_plan(options.json, job.plan, job.graph, needs, element_bytes(options), flags_of_run(options));
  }
}

}  // namespace tessera
