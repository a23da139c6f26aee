#include "tessera/comm/mpi/bare_mpi.h"

#include <mpi.h>

namespace tessera {

void bare_mpi_exchange(std::vector<BareMessage>& messages) {
  std::vector<MPI_Request> requests;
  requests.reserve(2 * messages.size());
  for (auto& m : messages)
    MPI_Irecv(m.receive.data(), static_cast<int>(m.receive.size()), MPI_BYTE, m.peer, 0, MPI_COMM_WORLD,
              &requests.emplace_back());
  for (auto& m : messages)
    MPI_Isend(m.send.data(), static_cast<int>(m.send.size()), MPI_BYTE, m.peer, 0, MPI_COMM_WORLD,
              &requests.emplace_back());
  MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE);
}

}  // namespace tessera
