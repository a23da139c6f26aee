// Stands in for nccl_communicator.cpp where NCCL was not found.
#include "tessera/comm/nccl/nccl_communicator.h"

namespace tessera {

bool nccl_built() { return false; }
std::string nccl_version() { return {}; }
void prepare_for_nccl(int) {}
std::unique_ptr<Communicator> with_nccl(Communicator&) { throw Error("this program was built without NCCL"); }

}  // namespace tessera
