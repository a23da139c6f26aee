// Who runs what: the whole of a run's division into ranks, decided before anything starts. Sequential training is the
// plan with one stage, a 1x1 grid and one replica.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/geometry/box.h"
#include "tessera/graph/graph.h"

namespace tessera {

/// What the flags ask for, in the seeds' names. Unset: not asked for, nothing is divided.
struct PlanOptions {
  std::int64_t batch_size = 32;
  std::int64_t parts = 1;  ///< micros a batch
  std::optional<std::int64_t> split_size;
  std::optional<std::string> balance;
  std::optional<std::string> num_spatial_parts;
  std::optional<std::int64_t> spatial_size;
  std::optional<std::string> slice_method;
  std::optional<std::int64_t> times;
  std::optional<std::int64_t> local_dp;
  std::optional<std::int64_t> fused_layers;
  bool halo_d2 = false;
};

/// Consecutive nodes run by one group of ranks.
struct Stage {
  int first_node = 0, end_node = 0;
  Grid grid;
  std::vector<int> ranks;
};

struct Plan {
  std::int64_t batch_size = 0;
  std::int64_t micros = 1;
  std::int64_t replicas = 1;
  std::string schedule = "1f1b";
  std::vector<Stage> stages;

  std::int64_t micro_size() const { return batch_size / micros; }
  int ranks() const;
};

/// What is wrong with the options whatever the network is. Throws UsageError.
void check_plan_options(const PlanOptions& options);

/// Throws UsageError with everything that is wrong. `ranks_started`: how many ranks the launcher has started; unset
/// when ranks are threads, which are as many as the plan needs.
Plan make_plan(const Graph& graph, const PlanOptions& options, std::optional<int> ranks_started = std::nullopt);

/// For people: stages, cells, costs and memory as a table. element_bytes: 4 or 8.
std::string plan_table(const Plan& plan, const Graph& graph, int element_bytes);

}  // namespace tessera
