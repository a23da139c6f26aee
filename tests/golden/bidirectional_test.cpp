// Two copies of the network that go through the same ranks in opposite directions train like one device, and stay alike
// to the bit.
#include "golden/plans.h"

namespace tessera::golden {
namespace {

class Bidirectional : public testing::TestWithParam<Row> {};

TEST_P(Bidirectional, TrainsLikeOneDevice) { expect_like_one_device(GetParam()); }

// Two samples a micro: see pipeline_test.cpp.
constexpr std::int64_t micro_size = 2;

PlanOptions both_ways(const std::string& schedule, std::int64_t stages, std::int64_t micros) {
  return {.batch_size = micros * micro_size, .parts = micros, .split_size = stages, .schedule = schedule};
}

struct Network {
  std::string name;
  ModelOptions model;
  std::string grid;  // of its first stage, where one is to be spatial
};

// The resnet has five cells, so five stages take one each. AmoebaNet ends in 3x3 pixels per sample here, whose norms
// amplify rounding from step to step (docs/numerics.md).
std::vector<Network> networks() {
  return {{"resnet_v1", resnet_v1(14, 13), "2x2"}, {"amoebanet", amoebanet(65, 67), "1x2"}};
}

// The row, and the same with a spatial stage.
void add(std::vector<Row>& rows, const Row& row, const std::string& grid) {
  rows.push_back(row);
  rows.push_back(row);
  rows.back().name += "_" + grid;
  rows.back().plan.grid = grid;
}

std::vector<Row> gems() {
  std::vector<Row> rows;
  for (const Network& n : networks()) {
    for (const std::int64_t stages : {2, 3})
      add(rows,
          {.name = concat("mast_", n.name, "_", stages, "_stages"),
           .model = n.model,
           .plan = both_ways("gems-mast", stages, 2)},
          n.grid);
    for (const std::int64_t times : {1, 2, 4}) {
      Row row{.name = concat("master_", times, "_", n.name),
              .model = n.model,
              .plan = both_ways("gems-master", times == 4 ? 2 : 4, times == 1 ? 3 : 1)};
      row.plan.times = times;
      add(rows, row, n.grid);
    }
    Row hybrid{.name = concat("hybrid_", n.name), .model = n.model, .plan = both_ways("gems-master", 2, 2)};
    hybrid.plan.times = 2;
    hybrid.plan.replicas = 2;
    add(rows, hybrid, n.grid);
  }
  rows.push_back({.name = "master_2_five_stages", .model = resnet_v2(12, 13), .plan = both_ways("gems-master", 5, 2)});
  rows.back().plan.times = 2;
  return rows;
}

std::vector<Row> chimera() {
  std::vector<Row> rows;
  for (const std::int64_t stages : {2, 3, 4, 5})
    for (const std::int64_t micros : {2, 4, 5, 8})
      for (const Network& n : networks()) {
        // The other half of the table for one network only.
        if (n.name == "amoebanet" && (stages + micros) % 2 == 0) continue;
        add(rows,
            {.name = concat("chimera_", n.name, "_", stages, "_stages_", micros, "_micros"),
             .model = n.model,
             .plan = both_ways("chimera", stages, micros)},
            n.grid);
      }
  // One micro: nothing goes up.
  rows.push_back({.name = "chimera_one_micro", .model = resnet_v1(14, 13), .plan = both_ways("chimera", 3, 1)});
  return rows;
}

// With everything else: several grids, shares of a micro, fused margins, replicas, clipping, long skips, dropout.
std::vector<Row> mixed() {
  std::vector<Row> rows;
  for (const std::string schedule : {"gems-mast", "gems-master", "chimera"}) {
    const std::string prefix = schedule == "chimera" ? "chimera" : schedule.substr(5);
    const auto row = [&](const std::string& name, std::int64_t stages, std::int64_t micros) -> Row& {
      rows.push_back({.name = prefix + "_" + name, .plan = both_ways(schedule, stages, micros)});
      if (schedule == "gems-master") rows.back().plan.times = 2;
      return rows.back();
    };
    Row& grids = row("two_grids", 3, 2);
    grids.model = resnet_v1(17, 18);
    grids.plan.grid = "2x2,3x1";
    Row& last = row("spatial_to_the_end", 2, 2);
    last.model = resnet_v1(17, 18);
    last.plan.grid = "1x2,2x1";
    Row& shares = row("local_dp_2", 2, 2);
    shares.model = resnet_v1(15, 14);
    shares.plan.grid = "2x2";
    shares.plan.local_dp = 2;
    Row& fused = row("fused", 3, 2);
    fused.model = resnet_v2(17, 15);
    fused.plan.grid = "1x2";
    fused.plan.halo_d2 = true;
    fused.plan.fused_layers = 2;
    Row& all = row("fused_local_dp_replicas", 3, 2);
    all.model = resnet_v1(18, 15);
    all.plan.grid = "2x1";
    all.plan.local_dp = 2;
    all.plan.halo_d2 = true;
    all.plan.fused_layers = 3;
    all.plan.replicas = 2;
    Row& global = row("norm_global", 2, 2);
    global.model = resnet_v1(13, 12);
    global.plan.replicas = 2;
    global.plan.batch_norm = "global";
    Row& bundles = row("hierarchical", 2, 2);
    bundles.model = resnet_v1(13, 12);
    bundles.plan.replicas = 4;
    bundles.plan.num_hp = 2;
    bundles.plan.grad_sync = "hierarchical";
    Row& clipped = row("clipped", 3, 2);
    clipped.model = resnet_v1(13, 12);
    clipped.clip_norm = 0.1;
    Row& skips = row("long_skips", 5, 2);
    skips.graph = long_skips(12, 11);
    Row& skipping_grids = row("long_skips_grids", 5, 2);
    skipping_grids.graph = long_skips(13, 15);
    skipping_grids.plan.grid = "2x2,1x1,3x1,1x2,1x1";
    Row& dropped = row("dropout", 3, 4);
    dropped.graph = with_dropout(11, 12);
    Row& buckets = row("wide", 2, 2);
    buckets.graph = wide();
    // Of Chimera's one micro nothing goes up: those copies have no backward, and several buckets all the same.
    Row& one_micro = row("wide_one_micro", 2, 1);
    one_micro.graph = wide();
    Row& one_micro_nodes = row("wide_one_micro_hierarchical", 2, 1);
    one_micro_nodes.graph = wide();
    one_micro_nodes.plan.replicas = 2;
    one_micro_nodes.plan.grad_sync = "hierarchical";
    one_micro_nodes.plan.ranks_per_node = 3;
    Row& dropped_tiles = row("dropout_tiles_local_dp", 3, 2);
    dropped_tiles.graph = with_dropout(11, 12);
    dropped_tiles.plan.grid = "1x2";
    dropped_tiles.plan.local_dp = 2;
  }
  return rows;
}

std::string name_of(const testing::TestParamInfo<Row>& row) { return row.param.name; }

INSTANTIATE_TEST_SUITE_P(Gems, Bidirectional, testing::ValuesIn(gems()), name_of);
INSTANTIATE_TEST_SUITE_P(Chimera, Bidirectional, testing::ValuesIn(chimera()), name_of);
INSTANTIATE_TEST_SUITE_P(Mixed, Bidirectional, testing::ValuesIn(mixed()), name_of);

}  // namespace
}  // namespace tessera::golden
