// Runs a test's body on several ranks: on threads, or on the MPI world when the test program was started by mpirun. The
// same tests are compiled once and run both ways. TESSERA_TEST_TRANSPORT=nccl: messages and sums of GPUs go by NCCL.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string_view>

#include "tessera/comm/mpi/mpi_communicator.h"
#include "tessera/comm/nccl/nccl_communicator.h"
#include "tessera/comm/threads/thread_communicator.h"

namespace tessera::test {

/// Short, so that a test which deadlocks says where instead of being killed.
inline const CommunicatorOptions short_timeout{.timeout = std::chrono::seconds(200)};

/// MPI for the length of the test program, if a launcher started it. Every rank runs every test, in the same order.
class MpiEnvironment : public ::testing::Environment {
 public:
  void SetUp() override {
    if (!MpiSession::started_by_launcher()) return;
    const char* transport = std::getenv("TESSERA_TEST_TRANSPORT");
    const bool by_nccl = transport && std::string_view(transport) == "nccl";
    session_ = std::make_unique<MpiSession>();
    if (by_nccl) prepare_for_nccl(session_->local_size());
    world_ = mpi_world(short_timeout);
    if (by_nccl) nccl_ = with_nccl(*world_);
  }
  void TearDown() override {
    nccl_.reset();
    world_.reset();
    session_.reset();
  }
  /// Null when ranks are threads.
  Communicator* world() const { return nccl_ ? nccl_.get() : world_.get(); }

  static MpiEnvironment& get() { return *registered_; }

 private:
  std::unique_ptr<MpiSession> session_;
  std::unique_ptr<Communicator> world_, nccl_;
  static MpiEnvironment* const registered_;
};
inline MpiEnvironment* const MpiEnvironment::registered_ =
    static_cast<MpiEnvironment*>(::testing::AddGlobalTestEnvironment(new MpiEnvironment));

inline bool ranks_are_threads() { return MpiEnvironment::get().world() == nullptr; }

/// How many ranks a test may ask for: the MPI world's, or `on_threads`.
inline int most_ranks(int on_threads) {
  return ranks_are_threads() ? on_threads : MpiEnvironment::get().world()->size();
}

/// Runs body on `ranks` ranks, at most most_ranks(). Under MPI the others wait; an exception ends the whole job.
inline void on_ranks(int ranks, const std::function<void(Communicator&)>& body) {
  if (ranks_are_threads()) return run_thread_ranks(ranks, body, short_timeout);
  Communicator& world = *MpiEnvironment::get().world();
  try {
    ensure(ranks <= world.size(), "a test for ", ranks, " ranks on a world of ", world.size());
    if (const auto part = world.split(world.rank().value < ranks ? 0 : -1, 0)) body(*part);
    world.barrier();
  } catch (const std::exception& error) {
    world.abort(error.what());
  }
}

}  // namespace tessera::test
