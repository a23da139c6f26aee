// Where ranks come from: the processes of an MPI launcher if one started us, threads otherwise.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "tessera/comm/communicator.h"
#include "tessera/comm/mpi/mpi_communicator.h"

namespace tessera {

class Launch {
 public:
  Launch();

  /// How many ranks the launcher started; unset for threads.
  std::optional<int> ranks_started() const;
  bool ranks_are_threads() const { return !session_; }
  int ranks_on_node() const { return session_ ? session_->local_size() : 1; }
  /// Of a rank of this process among those on the same machine.
  int rank_on_machine(const Communicator& world) const {
    return session_ ? session_->local_rank() : world.rank().value;
  }
  /// That the ranks on this machine share. A launcher binds each process to its own, so then it is all of the
  /// machine's.
  int cores() const;
  /// Whether this process is the one that talks to the user.
  bool speaks() const { return !world_ || world_->rank() == Rank{0}; }
  /// All processes; null where ranks are threads.
  Communicator* world() const { return world_.get(); }
  /// What `find` returns on the process that speaks, on all processes: for what one of them has to look up or check.
  /// If it throws an Error, all of them throw a UsageError with its message. Called by all processes.
  std::string told(const std::function<std::string()>& find) const;
  /// Runs body on every rank of the plan: here, for the ranks of this process.
  void run(int ranks, const std::function<void(Communicator&)>& body, const CommunicatorOptions& options = {}) const;

 private:
  std::unique_ptr<MpiSession> session_;
  std::unique_ptr<Communicator> world_;
};

}  // namespace tessera
