// The training loop of all ranks, for every command that trains.
#pragma once

#include "checkpoints.h"
#include "launch.h"
#include "options.h"
#include "tessera/io/report.h"

namespace tessera {

struct RunOptions {
  bool quiet = false;        ///< no progress
  bool every_step = false;   ///< a line for every step
  bool record = false;       ///< put down every action
  int ranks_in_process = 1;  ///< filled in by run_training()
};

/// Sets up the process for the run's GPUs, before its ranks start. Nothing to do for CPUs. try_algorithms: the first
/// convolution of each shape takes the time to find its fastest algorithm.
void prepare_gpus(const Options& options, bool try_algorithms);

/// Trains on all ranks until job.steps steps are done, from where the run starts. The report is whole on the process
/// that speaks.
RunReport run_training(const Options& options, const Job& job, const Launch& launch, RunOptions run,
                       const Start& start = {});

/// Compares the job's plan with the run that is known to be right. Throws Error when they differ.
VerifyReport run_verification(const Options& options, const Job& job, const Launch& launch, double tolerance);

/// Where the step's time went and how much memory it took, a row a rank.
std::string breakdown_table(const RunReport& report, const Plan& plan);

/// The share of all ranks' time in which they waited for other stages, the end of the step included.
double idle_share(const RunReport& report);

/// "1.23 images/s", with as many digits as tell something.
std::string human_speed(double images_per_second);

}  // namespace tessera
