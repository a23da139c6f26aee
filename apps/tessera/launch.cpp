#include "launch.h"

#include "tessera/comm/thread_communicator.h"

namespace tessera {

Launch::Launch() {
  if (!MpiSession::started_by_launcher()) return;
  session_ = std::make_unique<MpiSession>();
  world_ = mpi_world();
}

std::optional<int> Launch::ranks_started() const { return world_ ? std::optional<int>(world_->size()) : std::nullopt; }

void Launch::run(int ranks, const std::function<void(Communicator&)>& body) const {
  if (session_)
    run_mpi_ranks(*session_, body);
  else
    run_thread_ranks(ranks, body);
}

}  // namespace tessera
