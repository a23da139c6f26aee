// Who runs what: the whole of a run's division into ranks, decided before anything starts. Sequential training is the
// plan with one stage, a 1x1 grid and one replica.
#pragma once

#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "tessera/geometry/box.h"
#include "tessera/graph/graph.h"

namespace tessera {

/// Which way through the ranks a pipeline runs. `up` is the mirror image: rank r of a replica stands where last - r
/// stands in `down`.
enum class Direction { down, up };

/// The order of a step's actions; see schedule/.
enum class ScheduleKind { gpipe, one_f_one_b, zero_bubble, gems_mast, gems_master, chimera };
std::string_view to_string(ScheduleKind kind);
/// Throws UsageError with the names there are.
ScheduleKind parse_schedule(const std::string& name);

/// What batch norm takes its statistics over.
enum class NormScope {
  local,   ///< each rank's own part of the micro: the published systems' way, and not exact
  micro,   ///< the whole micro, all its tiles and batch ways together
  global,  ///< the micros of all replicas together
};
std::string_view to_string(NormScope scope);

/// How the gradients of a parameter's copies are added up.
enum class GradSync {
  flat,          ///< one all-reduce over all copies
  hierarchical,  ///< each node's local master collects, masters all-reduce, masters broadcast
};
std::string_view to_string(GradSync sync);

/// What the flags ask for, in the seeds' names. Unset: not asked for, nothing is divided.
struct PlanOptions {
  std::int64_t batch_size = 32;
  std::int64_t parts = 1;  ///< micros per batch
  std::optional<std::int64_t> split_size;
  std::optional<std::string> balance;
  std::string balance_by = "time";  ///< or "memory"
  std::optional<std::string> num_spatial_parts;
  std::optional<std::string> grid;
  std::optional<std::int64_t> spatial_size;
  std::optional<std::string> slice_method;
  std::optional<std::string> turns;
  std::optional<std::string> schedule;
  std::optional<std::int64_t> times;
  std::optional<std::int64_t> local_dp;
  std::optional<std::int64_t> replicas;
  std::optional<std::int64_t> fused_layers;
  bool halo_d2 = false;
  std::string batch_norm = "micro";
  std::optional<std::string> grad_sync;  ///< flat, or hierarchical with num_hp
  std::optional<std::int64_t> num_hp;
  bool dp_only = false;
  std::optional<std::int64_t> ranks_per_node;
};

/// Consecutive nodes run by one group of ranks. Member way·tiles + tile has the tile (row by row) of the way's share of
/// a micro's samples. A rank is one member, or, with turns, a block of neighbouring ones:
///
///     grid 4x4, turns 2x2:    0 0 1 1     the ranks that hold each tile; every rank
///                             0 0 1 1     works through its four tiles in turn
///                             2 2 3 3
///                             2 2 3 3
struct Stage {
  int first_node = 0, end_node = 0;
  Grid grid;  ///< of all tiles
  std::int64_t batch_ways = 1;
  std::vector<int> ranks = {};  ///< within a replica, direction down
  Grid turns = {};              ///< tiles of one rank

  int members() const { return static_cast<int>(grid.tiles() * batch_ways); }
  /// Which of the ranks has a member.
  int holder(int member) const;
};

/// A step trains replicas · directions · batches of one direction, each of batch_size samples in micros; all together
/// are the batch that sequential training would take.
struct Plan {
  std::int64_t batch_size = 0;  ///< samples of one batch of one replica
  std::int64_t parts = 1;       ///< micros of one batch
  std::int64_t replicas = 1;
  ScheduleKind schedule = ScheduleKind::one_f_one_b;
  std::int64_t times = 1;  ///< gems_master: batches of each direction
  std::vector<Stage> stages;
  std::int64_t fused_layers = 0;  ///< cells that share a margin exchange; 0: none is shared
  NormScope batch_norm = NormScope::micro;
  GradSync grad_sync = GradSync::flat;
  std::int64_t ranks_per_node = 0;  ///< 0: as the launcher says

  bool bidirectional() const { return schedule >= ScheduleKind::gems_mast; }
  int directions() const { return bidirectional() ? 2 : 1; }
  std::int64_t micro_size() const { return batch_size / parts; }
  /// Micros that one replica runs in a step, in a direction and in all.
  std::int64_t micros(Direction direction) const;
  std::int64_t micros() const { return micros(Direction::down) + micros(Direction::up); }
  /// Samples of a step over all replicas and directions: the batch of the sequential run that this plan equals, and the
  /// micros that run takes it in.
  std::int64_t global_batch() const { return replicas * micros() * micro_size(); }
  std::int64_t global_micros() const { return batch_norm == NormScope::global ? micros() : replicas * micros(); }
  /// Where a micro's samples begin in the global batch.
  std::int64_t first_sample(std::int64_t replica, Direction direction, std::int64_t micro) const;

  /// Members of all stages.
  int places() const;
  /// Whether some rank has several places of a direction.
  bool turns() const { return places() > ranks_per_replica(); }
  /// Whether a step is the same work every time, with nothing between that anybody has to bring: one rank, alone, that
  /// holds its images whole.
  bool repeats_itself() const { return ranks() == 1 && !turns(); }
  /// The number of a place among all of its direction; that of its rank where no rank has two.
  int number_of(Direction direction, int stage, int member) const;

  int ranks_per_replica() const;
  int ranks() const { return static_cast<int>(replicas) * ranks_per_replica(); }
  /// The rank, within its replica, of a stage's member in a direction.
  int rank_of(Direction direction, int stage, int member) const;
  /// All ranks of a stage.
  std::vector<int> ranks_of(Direction direction, int stage) const;

  /// The member of a stage that a rank is.
  struct Place {
    Direction direction = Direction::down;
    int stage = 0;
    int member = 0;
    friend bool operator==(const Place&, const Place&) = default;
  };
  /// Those of direction down first, members in order. Without turns there is one per direction.
  std::vector<Place> places_of(int rank_in_replica) const;
  /// The first one of each direction.
  std::vector<Place> first_places_of(int rank_in_replica) const;
  /// How many ranks of this rank's node, itself included, work at the same time: those of its stage where the stages
  /// take turns (one micro and one direction), otherwise all. They share the node's cores.
  int ranks_at_work_beside(int rank) const;
  /// The samples of a micro that a place has, counted within the micro: its way's share.
  Interval samples_of(const Place& place) const;
};

/// What is wrong with the options whatever the network is. Throws UsageError.
void check_plan_options(const PlanOptions& options);
/// What can be said of flags of which some are still to be found.
void check_plan_numbers(const PlanOptions& options);

/// The grids of the spatial stages, by --grid or by --num-spatial-parts and --slice-method; none if not asked for.
/// Throws UsageError.
std::vector<Grid> requested_grids(const PlanOptions& options);

/// Throws UsageError with everything that is wrong. `ranks_started`: how many ranks the launcher has started; unset
/// when ranks are threads, which are as many as the plan needs.
Plan make_plan(const Graph& graph, const PlanOptions& options, std::optional<int> ranks_started = std::nullopt);

/// The plan of the sequential run that trains alike: one rank, the global batch, as many micros.
Plan sequential_plan(const Graph& graph, const Plan& plan);

/// For people: stages, cells, costs and memory as a table. element_bytes: 4 or 8.
std::string plan_table(const Plan& plan, const Graph& graph, int element_bytes);

}  // namespace tessera
