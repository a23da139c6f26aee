// --auto: how a run is divided, found by the program.
#pragma once

#include "job.h"

namespace tessera {

class Launch;

/// Searches the plans of the ranks that there are, with costs that are measured where the device is at hand, prints the
/// best few, and puts the first of them into the options. The job has its graph and, if it will run, its images.
/// Throws UsageError where nothing is possible or fits. Collective over the processes of the launch.
void choose_plan(Job& job, Options& options, const Launch& launch);

}  // namespace tessera
