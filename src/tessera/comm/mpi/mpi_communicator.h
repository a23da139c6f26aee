// Ranks as MPI processes. No header that others include has mpi.h in it.
#pragma once

#include <functional>
#include <memory>

#include "tessera/comm/communicator.h"

namespace tessera {

class LauncherWatch;

/// MPI from initialisation to finalisation; one per process, made before anything else here and outliving all of it.
/// Left by an exception, it ends all ranks: finalisation would wait for ranks that wait for this one.
class MpiSession {
 public:
  MpiSession();
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

  /// Whether mpirun or the like started this process, as its environment tells; MPI need not be initialised.
  static bool started_by_launcher();
  /// This rank among those on the same machine, and how many they are: which of its devices to take.
  int local_rank() const { return local_rank_; }
  int local_size() const { return local_size_; }

 private:
  int exceptions_at_start_;
  int local_rank_ = 0, local_size_ = 1;
  std::unique_ptr<LauncherWatch> launcher_;  ///< null where nobody launched this process
};

/// "Open MPI v4.1.4": which library this is. MPI need not be initialised.
std::string mpi_library_version();

/// Whether the library says that it sends from GPU memory and receives into it. MPI must be initialised.
bool mpi_reads_gpu_memory();

/// All ranks of the job, for tensors on GPUs, too (see staged()). Called by all of them.
std::unique_ptr<Communicator> mpi_world(CommunicatorOptions options = {});

/// Runs body on this rank of the world. An exception is printed with the rank's number and ends all ranks at once.
void run_mpi_ranks(const MpiSession& session, const std::function<void(Communicator&)>& body,
                   CommunicatorOptions options = {});

}  // namespace tessera
