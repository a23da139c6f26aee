// The training loop of all ranks, for every command that trains.
#pragma once

#include "checkpoints.h"
#include "job.h"
#include "launch.h"
#include "tessera/io/report.h"

namespace tessera {

struct RunOptions {
  bool quiet = false;       ///< no progress
  bool every_step = false;  ///< a line for every step
  bool record = false;      ///< put down every action
};

/// Sets up the process for the run's GPUs, before its ranks start. Nothing to do for CPUs. `passes`: how often the
/// network will run, about. Each rank takes seconds to minutes to try cuDNN's algorithms on all of its convolutions, so
/// that is for long runs.
void prepare_gpus(const Options& options, const Job& job, std::int64_t passes);

/// Runs body on every rank of the plan: on the rank's device, with its threads and the job's transport.
void run_ranks(const Options& options, const Job& job, const Launch& launch,
               const std::function<void(Communicator&)>& body);

/// Trains on all ranks until job.steps steps are done, from where the run starts. The report is whole on the process
/// that speaks.
RunReport run_training(const Options& options, const Job& job, const Launch& launch, const RunOptions& run,
                       const Start& start = {});

/// Compares the job's plan with the run that is known to be right. A tolerance of 0 is what the data type allows.
VerifyReport run_verification(const Options& options, const Job& job, const Launch& launch, double tolerance = 0);
/// Why a comparison did not pass, in a sentence.
std::string why_not_equal(const VerifyReport& report);

/// Where the step's time went and how much memory it took, one row per rank.
std::string breakdown_table(const RunReport& report, const Plan& plan);

/// The share of all ranks' time in which they waited for other stages, the end of the step included.
double idle_share(const RunReport& report);

/// "1.23 images/s", with as many digits as tell something.
std::string human_speed(double images_per_second);

}  // namespace tessera
