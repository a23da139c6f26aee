#include "launch.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <thread>

#include "tessera/comm/nccl/nccl_communicator.h"
#include "tessera/comm/threads/thread_communicator.h"
#include "tessera/runtime/cores.h"

namespace tessera {

Launch::Launch() {
  if (!MpiSession::started_by_launcher()) return;
  session_ = std::make_unique<MpiSession>();
  prepare_for_nccl(session_->local_size());
  // What one process finds out for all, such as the costs of --auto, may take long.
  world_ = mpi_world({.timeout = std::chrono::hours(6)});
}

std::optional<int> Launch::ranks_started() const { return world_ ? std::optional<int>(world_->size()) : std::nullopt; }

int Launch::cores() const {
  if (ranks_are_threads()) return static_cast<int>(processors_of_thread().size());
  std::size_t cores = 0;
  for (const auto& node : numa_nodes_here()) cores += node.size();
  return std::max(1, static_cast<int>(cores > 0 ? cores : std::thread::hardware_concurrency()));
}

std::string Launch::told(const std::function<std::string()>& find) const {
  std::string text, problem;
  try {
    if (speaks()) text = find();
  } catch (const std::exception& error) {
    problem = error.what();
  }
  if (world_) {
    for (std::string* each : {&text, &problem}) {
      at::Tensor size = at::full({1}, static_cast<std::int64_t>(each->size()), at::kLong);
      world_->broadcast(size, Rank{0}).wait();
      each->resize(static_cast<std::size_t>(size.item<std::int64_t>()));
      if (each->empty()) continue;
      at::Tensor bytes = at::empty({static_cast<std::int64_t>(each->size())}, at::kByte);
      std::memcpy(bytes.data_ptr(), each->data(), each->size());
      world_->broadcast(bytes, Rank{0}).wait();
      std::memcpy(each->data(), bytes.data_ptr(), each->size());
    }
  }
  if (!problem.empty()) throw UsageError(problem);
  return text;
}

void Launch::run(int ranks, const std::function<void(Communicator&)>& body, const CommunicatorOptions& options) const {
  if (session_)
    run_mpi_ranks(*session_, body, options);
  else
    run_thread_ranks(ranks, body, options);
}

}  // namespace tessera
