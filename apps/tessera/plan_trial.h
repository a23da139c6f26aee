// A plan that --auto found, tried out on the ranks of the run.
#pragma once

#include "job.h"

namespace tessera {

/// Images/s of a few steps of training, without the first, with the options' plan and the job's images; nothing is
/// learned. On the process that speaks; collective over the processes of the launch.
Spread try_plan(Job job, Options options, const Launch& launch);

}  // namespace tessera
