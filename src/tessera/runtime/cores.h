// Which cores a rank computes on, and whose memory it takes. A core reaches the memory of its own NUMA node about twice
// as fast as another's, so ranks of one machine stay within a node each, where that leaves nobody short of cores:
//
//     4 ranks of 2 threads                3 ranks of 2 threads
//     node 0  0 0 1 1                     node 0  0 0 1 1
//     node 1  2 2 3 3                     node 1  2 2 . .
//
// Neighbours in number are neighbours in the image and in the pipeline, so they share a node first.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

namespace tessera {

/// The processors that a job may use on this machine, as the system numbers them, one list per NUMA node. What a
/// container or a batch system leaves out is not among them; what a launcher has bound this process to makes no
/// difference.
using NumaNodes = std::vector<std::vector<int>>;
NumaNodes numa_nodes_here();
/// Of hwloc, which knows them; "no: ..." where it was not there when Tessera was built, and a machine is one node.
std::string hwloc_version();

/// That the calling thread may run on.
std::vector<int> processors_of_thread();
/// As much of a machine as that leaves.
NumaNodes within(const NumaNodes& machine, std::span<const int> processors);

/// Where a rank goes.
struct Cores {
  std::vector<int> processors = {};  ///< empty: it stays where it is
  std::vector<int> nodes = {};       ///< whose memory it takes; empty: of any
};
/// Of all ranks on this machine, which compute with up to `threads` threads each. A launcher that left a rank fewer
/// processors (`has`) than threads did not know of these: then it may run on all of them.
std::vector<Cores> cores_of_ranks(const NumaNodes& machine, int ranks, int threads, int has);

/// For the calling thread, and those that it starts from now on. False, and nothing has changed, where the system
/// does not allow it.
bool keep_to(const Cores& cores);
/// Does some work in a thread of its own that keeps to these cores. What it starts, OpenMP's workers too, ends with it.
/// Throws what the work throws.
void apart(const Cores& cores, const std::function<void()>& work);

/// Every processor that the job may use on this machine, whatever a launcher has bound this process to.
Cores whole_machine();

}  // namespace tessera
