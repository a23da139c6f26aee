#include "measured_costs.h"

#include <algorithm>
#include <numeric>

#include "memory_fit.h"
#include "tessera/base/meter.h"
#include "tessera/base/text.h"
#include "tessera/runtime/memory.h"

namespace tessera {

MeasuredCosts::MeasuredCosts(const Job& job, const Options& options, int cores)
    : job_(job), o_(options), cores_(cores), costs_(static_cast<int>(job.graph.cells().size())) {}

void MeasuredCosts::try_cells(const std::vector<int>& threads) {
  const double begin = now_seconds();
  for (const int t : threads) {
    rehearse_cells(rehearsal(t, o_.train.recompute), 1, costs_);
    if (o_.plan.batch_size == 1) continue;
    // More samples at once are cheaper each, to a point.
    const std::vector<double> totals = costs_.totals(t, 1);
    const double one = std::accumulate(totals.begin(), totals.end(), 0.0);
    constexpr double enough = 4;
    auto samples = std::min<std::int64_t>(o_.plan.batch_size, static_cast<std::int64_t>(enough / one));
    while (samples > 1 && players_with_memory(samples) < 1) samples /= 2;
    if (samples > 1) rehearse_cells(rehearsal(t, o_.train.recompute, 0, samples), samples, costs_);
  }
  seconds_ += now_seconds() - begin;
}

void MeasuredCosts::try_stages(Candidate& c) {
  const double begin = now_seconds();
  const Layout layout = make_layout(job_.graph, c.plan);
  const bool split = c.plan.schedule == ScheduleKind::zero_bubble;
  for (const StageLoad& load : c.loads) choose_ways(rehearsal(load.threads, c.recompute), c.plan);
  for (int s = 0; s < static_cast<int>(c.plan.stages.size()); ++s) {
    const Stage& stage = c.plan.stages[static_cast<std::size_t>(s)];
    StageLoad& load = c.loads[static_cast<std::size_t>(s)];
    const int beside = o_.on_gpus() ? 1 : c.plan.ranks_at_work_beside(stage.ranks.front());
    const std::string key =
        concat(beside, " ", stage.first_node, " ", stage.end_node, " ", stage.grid, " ", stage.batch_ways, " ",
               c.plan.micro_size(), " ", c.plan.fused_layers, " ", words_of(c.recompute), " ", load.threads, " ", split,
               " ", o_.on_gpus() ? c.plan.micros(Direction::down) : 0, " ", c.plan.repeats_itself());
    const auto [known, fresh] = stages_.try_emplace(key);
    if (fresh) known->second = rehearse(rehearsal(load.threads, c.recompute, beside), c.plan, layout, s, split);
    load.seconds = known->second;
  }
  c.measured = true;
  seconds_ += now_seconds() - begin;
}

// How many can rehearse a cell side by side: each has so many whole images of it, its values and their gradients.
int MeasuredCosts::players_with_memory(std::int64_t samples) const {
  if (o_.on_gpus()) return 1;
  std::int64_t largest = 0;
  for (const Node& node : job_.graph.nodes()) largest = std::max(largest, node.shape.elements());
  constexpr double values_at_a_time = 8, share = 0.5;
  const double bytes = values_at_a_time * static_cast<double>(samples * largest * element_bytes(o_));
  const double free = free_host_bytes();
  require(bytes < free || samples > 1, "--auto tries out each part of the network on a whole image, which takes about ",
          human_bytes(static_cast<std::int64_t>(bytes)), " here, and ", human_bytes(static_cast<std::int64_t>(free)),
          " are free; give the plan by hand (--grid, --turns), or look for one with tessera plan --auto --machine");
  return static_cast<int>(std::min(1e6, share * free / bytes));
}

// `ranks`: that are at work at the same time; 0: as many as have cores.
Rehearsal MeasuredCosts::rehearsal(int threads, Recompute recompute, int ranks, std::int64_t samples) const {
  constexpr int most = 16;
  const int players = std::min(ranks > 0 ? ranks : cores_ / threads, players_with_memory(samples));
  const int company = std::clamp(players, 1, most);
  return {.graph = job_.graph,
          .activations = o_.train.activations(),
          .recompute = recompute,
          .threads = threads,
          .company = o_.on_gpus() ? 1 : company,
          .cores = o_.on_gpus() ? 0 : cores_};
}

}  // namespace tessera
