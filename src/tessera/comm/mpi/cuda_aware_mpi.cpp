#include <mpi.h>
// After mpi.h, which it needs. MPICH has no such file, and says it in mpi.h.
#if __has_include(<mpi-ext.h>)
#include <mpi-ext.h>
#endif

#include "tessera/comm/mpi/mpi_communicator.h"

namespace tessera {

bool mpi_reads_gpu_memory() { return MPIX_Query_cuda_support() == 1; }

}  // namespace tessera
