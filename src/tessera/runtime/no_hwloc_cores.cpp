// Takes the place of hwloc_cores.cpp where hwloc is not installed.
#include "tessera/runtime/cores.h"

namespace tessera {

NumaNodes numa_nodes_here() { return {}; }
std::string hwloc_version() { return "no: ranks are not bound to NUMA nodes"; }
bool keep_to(const Cores& cores) { return cores.processors.empty(); }

}  // namespace tessera
