// Stands in for cuda_aware_mpi.cpp where the MPI library has nothing to say on GPUs.
#include "tessera/comm/mpi/mpi_communicator.h"

namespace tessera {

bool mpi_reads_gpu_memory() { return false; }

}  // namespace tessera
