#include "plan_trial.h"

#include <ATen/ops/full.h>

#include <algorithm>

#include "launch.h"
#include "memory_fit.h"
#include "run.h"
#include "tessera/runtime/cores.h"
#include "tessera/runtime/memory.h"
#include "tessera/runtime/trainer.h"

namespace tessera {

Spread try_plan(Job job, Options options, const Launch& launch) {
  options.quiet = true;
  settle_plan(job, options, launch);
  fit_into_memory(job, options, launch);
  choose_convolutions(job, options, launch);
  install_cpu_allocator();
  options.train.optimizer.lr = 0;  // steps that learn may lead to a loss that is not a number
  Spread speed;
  // Where ranks are bound to, and the threads that they start, must not stay for the run.
  const auto on_rank = [&](Communicator& world) {
    Trainer trainer(job.graph, job.plan, options.train, job.images, &world);
    std::vector<StepReport> steps{trainer.step(), trainer.step()};
    // As many as pass in a while, by the slowest rank.
    constexpr double a_while = 2;
    constexpr double most = 50;
    at::Tensor second = at::full({1}, steps.back().seconds, at::kDouble);
    world.all_reduce(second, Reduce::max).wait();
    const double wanted = std::min(most, a_while / second.item<double>());
    while (static_cast<double>(steps.size()) < wanted) steps.push_back(trainer.step());
    if (world.rank() == Rank{0}) speed = images_per_second(steps, job.plan.global_batch());
  };
  apart({}, [&] { run_ranks(options, job, launch, on_rank); });
  give_back_unused_memory();
  return speed;
}

}  // namespace tessera
