#include "tessera/runtime/cores.h"

#include <sched.h>

#include <algorithm>
#include <exception>
#include <thread>

#include "tessera/base/index.h"

namespace tessera {
namespace {

Cores everywhere(const NumaNodes& machine) {
  Cores all;
  for (const auto& node : machine) all.processors.insert(all.processors.end(), node.begin(), node.end());
  return all;
}

}  // namespace

std::vector<int> processors_of_thread() {
  // As many as the system has are not known; too small a set is refused.
  for (int most = CPU_SETSIZE; most <= 1 << 20; most *= 2) {
    cpu_set_t* const set = CPU_ALLOC(static_cast<std::size_t>(most));
    const std::size_t bytes = CPU_ALLOC_SIZE(static_cast<std::size_t>(most));
    std::vector<int> processors;
    if (sched_getaffinity(0, bytes, set) == 0)
      for (int p = 0; p < most; ++p)
        if (CPU_ISSET_S(static_cast<std::size_t>(p), bytes, set)) processors.push_back(p);
    CPU_FREE(set);
    if (!processors.empty()) return processors;
  }
  return {0};
}

NumaNodes within(const NumaNodes& machine, std::span<const int> processors) {
  NumaNodes nodes;
  for (const auto& node : machine) {
    std::vector<int> left;
    for (const int p : node)
      if (std::find(processors.begin(), processors.end(), p) != processors.end()) left.push_back(p);
    if (!left.empty()) nodes.push_back(std::move(left));
  }
  return nodes;
}

std::vector<Cores> cores_of_ranks(const NumaNodes& machine, int ranks, int threads, int has) {
  std::vector<Cores> all(index(ranks));
  const auto nodes = static_cast<std::int64_t>(machine.size());
  const auto first_node = [&](int rank) { return static_cast<int>(rank * nodes / ranks); };
  std::vector<int> wanted(machine.size());  // cores, of the node where a rank begins
  for (int r = 0; r < ranks && nodes > 0; ++r) {
    Cores& cores = all[index(r)];
    const int first = first_node(r), end = std::max(first + 1, first_node(r + 1));
    for (int node = first; node < end; ++node) {
      cores.nodes.push_back(node);
      cores.processors.insert(cores.processors.end(), machine[index(node)].begin(), machine[index(node)].end());
    }
    wanted[index(first)] += threads;
  }
  bool enough = nodes > 1 && ranks > 1;
  for (int r = 0; r < ranks && enough; ++r)
    enough = wanted[index(first_node(r))] <= static_cast<int>(all[index(r)].processors.size());
  if (enough) return all;
  return {index(ranks), has < threads ? everywhere(machine) : Cores{}};
}

void apart(const Cores& cores, const std::function<void()>& work) {
  std::exception_ptr failure;
  std::thread([&] {
    try {
      keep_to(cores);
      work();
    } catch (...) {
      failure = std::current_exception();
    }
  }).join();
  if (failure) std::rethrow_exception(failure);
}

Cores whole_machine() { return everywhere(numa_nodes_here()); }

}  // namespace tessera
