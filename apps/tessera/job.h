// What the flags come to: a run, checked as a whole before anything starts.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "network.h"
#include "options.h"
#include "tessera/io/report.h"
#include "tessera/runtime/cores.h"
#include "tessera/schedule/footprint.h"

namespace tessera {

class Launch;

/// Of an activation.
inline int element_bytes(const Options& o) { return o.dtype == "float64" ? 8 : o.dtype == "bfloat16" ? 2 : 4; }

/// What --plan takes: the flags that make the plan.
PlanFlags flags_of_run(const Options& options);

/// A run, checked as a whole before anything starts.
struct Job {
  Graph graph;
  // For --heatmap: a value of the graph, which is then another way to write the network, without auxiliary heads; and
  // the network as its weights have it.
  std::optional<Value> maps;
  std::optional<Graph> whole_network;
  std::optional<ForeignModel> foreign;  ///< where the graph is from, if that is a file
  Plan plan;
  std::shared_ptr<const ImageSource> images;
  std::shared_ptr<const ImageSource> validation;  ///< for --eval-every
  std::vector<std::string> class_names;           ///< of images, or of pixels; empty: they have numbers only
  std::int64_t steps = 0;
  std::vector<int> threads;    ///< by rank
  std::vector<Cores> cores;    ///< where the ranks of this machine compute; empty: nobody is bound
  bool common_copies = false;  ///< see Copies
  Transport transport = Transport::mpi;
  std::optional<double> expected_speed;       ///< images/s that --auto expects
  std::vector<RunReport::Expected> expected;  ///< by rank of a replica, what it had put together for their time
  std::string scaling;                        ///< the document of --scaling
  std::string transport_words;                ///< how ranks on GPUs talk, for the user; empty on CPUs

  /// What NCCL has queued on a GPU waits for other ranks, so a host that waits in the middle of a step for all that its
  /// GPU has queued, as cuDNN's search does, may wait for ever.
  bool may_wait_for_gpus() const { return transport == Transport::mpi || plan.ranks() == 1; }
};

/// Fills in what follows from the flags (options.train, options.model) and throws UsageError with all that is wrong.
/// Collective over the processes of the launch.
Job make_job(Options& options, const ModelRegistry& models, const Launch& launch);

/// The plan of the flags, and what its ranks compute and read with: a part of make_job().
void settle_plan(Job& job, Options& options, const Launch& launch);
/// The fastest way for every convolution of the plan, where ways are measured: likewise.
void choose_convolutions(const Job& job, const Options& options, const Launch& launch);

/// Where one process of a machine finds something out while the others sleep: everywhere, because a launcher that binds
/// processes does so before anybody knows how many threads they will have.
Cores cores_to_measure_on(const Options& options, const Launch& launch);

}  // namespace tessera
