#include <hwloc.h>

#include <memory>
#include <set>

#include "tessera/base/text.h"
#include "tessera/runtime/cores.h"
#include "tessera/runtime/memory.h"

namespace tessera {
namespace {

// Found once, and kept: it takes some milliseconds. Null: hwloc cannot read this machine.
hwloc_topology_t topology() {
  static const hwloc_topology_t found = [] {
    hwloc_topology_t t = nullptr;
    if (hwloc_topology_init(&t) != 0) return hwloc_topology_t{};
    if (hwloc_topology_load(t) == 0) return t;
    hwloc_topology_destroy(t);
    return hwloc_topology_t{};
  }();
  return found;
}

struct FreeBitmap {
  void operator()(hwloc_bitmap_t set) const { hwloc_bitmap_free(set); }
};
using Bitmap = std::unique_ptr<std::remove_pointer_t<hwloc_bitmap_t>, FreeBitmap>;

Bitmap bitmap_of(const std::vector<int>& members) {
  Bitmap set(hwloc_bitmap_alloc());
  for (const int i : members) hwloc_bitmap_set(set.get(), static_cast<unsigned>(i));
  return set;
}

}  // namespace

NumaNodes numa_nodes_here() {
  NumaNodes nodes;
  if (!topology()) return nodes;
  std::set<int> seen;
  for (hwloc_obj_t node = nullptr; (node = hwloc_get_next_obj_by_type(topology(), HWLOC_OBJ_NUMANODE, node));) {
    std::vector<int> processors;
    int processor = -1;
    while ((processor = hwloc_bitmap_next(node->cpuset, processor)) >= 0)
      if (seen.insert(processor).second) processors.push_back(processor);
    // Memory without cores of its own: a card's, or another kind of memory beside the same cores.
    if (!processors.empty()) nodes.push_back(std::move(processors));
  }
  return nodes;
}

std::string hwloc_version() {
  const unsigned version = hwloc_get_api_version();
  return concat(version >> 16, ".", version >> 8 & 0xff);
}

bool keep_to(const Cores& cores) {
  if (cores.processors.empty()) return true;
  if (!topology() || hwloc_set_cpubind(topology(), bitmap_of(cores.processors).get(), HWLOC_CPUBIND_THREAD) != 0)
    return false;
  if (cores.nodes.empty()) return true;
  // By what these cores are near to, until that is full.
  hwloc_set_membind(topology(), bitmap_of(cores.processors).get(), HWLOC_MEMBIND_BIND, HWLOC_MEMBIND_THREAD);
  take_blocks_of(cores.nodes.front());
  return true;
}

}  // namespace tessera
