// MPI with nothing around it, to measure ourselves against.
#pragma once

#include <cstddef>
#include <vector>

namespace tessera {

/// Bytes to and from one peer of the MPI world.
struct BareMessage {
  int peer = 0;
  std::vector<std::byte> send, receive;
};

/// One MPI_Irecv and one MPI_Isend a message, and MPI_Waitall. Only under an MPI launcher.
void bare_mpi_exchange(std::vector<BareMessage>& messages);

}  // namespace tessera
