// Every pipeline trains like one device: stages, schedules, micros, replicas, shares of a micro, bundles, and all of
// them behind spatial stages.
#include "golden/plans.h"

namespace tessera::golden {
namespace {

class Pipeline : public testing::TestWithParam<Row> {};

TEST_P(Pipeline, TrainsLikeOneDevice) { expect_like_one_device(GetParam()); }

// A micro has two samples at least: with one, the normalised features have the same mean for every image, and nothing
// but the head would train.
constexpr std::int64_t micro_size = 2;

const std::vector<std::pair<std::string, std::string>> schedules{
    {"gpipe", "gpipe"}, {"1f1b", "1f1b"}, {"zero-bubble", "zero_bubble"}};

PlanOptions pipeline(const std::string& schedule, std::int64_t stages, std::int64_t micros) {
  return {.batch_size = micros * micro_size, .parts = micros, .split_size = stages, .schedule = schedule};
}

// Numbers of stages times schedules times numbers of micros, fewer than the stages included.
std::vector<Row> every_shape() {
  std::vector<Row> rows;
  for (const std::int64_t stages : {2, 3, 4, 5})
    for (const auto& [schedule, name] : schedules)
      for (const std::int64_t micros : {1, 2, 4, 7}) {
        const bool first = (stages + micros) % 2 == 0;  // half of the table each
        rows.push_back({.name = concat(stages, "_stages_", name, "_", micros, "_micros"),
                        .model = first ? resnet_v1(14, 12) : resnet_v2(12, 13),
                        .plan = pipeline(schedule, stages, micros)});
      }
  return rows;
}

// Grids in front, one and two of them, and in the middle.
std::vector<Row> behind_grids() {
  std::vector<Row> rows;
  for (const auto& [schedule, name] : schedules) {
    for (const char* grid : {"2x2", "3x1"}) {
      Row row{.name = concat("grid_", grid, "_", name), .model = resnet_v1(19, 17), .plan = pipeline(schedule, 3, 4)};
      row.plan.grid = grid;
      rows.push_back(row);
    }
    Row two{.name = concat("two_grids_", name), .model = resnet_v2(17, 19), .plan = pipeline(schedule, 4, 2)};
    two.plan.grid = "2x2,1x3";
    rows.push_back(two);
  }
  Row between{.name = "grid_between", .model = resnet_v1(17, 19), .plan = pipeline("zero-bubble", 3, 3)};
  between.plan.grid = "1x1,2x2,1x1";
  rows.push_back(between);
  Row fused{.name = "fused_zero_bubble", .model = resnet_v2(17, 19, 20), .plan = pipeline("zero-bubble", 3, 2)};
  fused.plan.grid = "2x2,2x1";
  fused.plan.halo_d2 = true;
  fused.plan.fused_layers = 3;
  rows.push_back(fused);
  rows.push_back({.name = "amoebanet_2x2_1f1b", .model = amoebanet(67, 65), .plan = pipeline("1f1b", 3, 2)});
  rows.back().plan.grid = "2x2";
  return rows;
}

std::vector<Row> replicas() {
  std::vector<Row> rows;
  for (const std::int64_t count : {2, 3})
    for (const char* norm : {"micro", "global"}) {
      Row whole{.name = concat(count, "_replicas_norm_", norm), .model = resnet_v1(13, 12), .plan = {.batch_size = 4}};
      whole.plan.parts = 2;
      whole.plan.replicas = count;
      whole.plan.batch_norm = norm;
      rows.push_back(whole);
      Row piped = whole;
      piped.name += "_two_stages";
      piped.plan.split_size = 2;
      piped.plan.schedule = count == 2 ? "zero-bubble" : "1f1b";
      rows.push_back(piped);
      Row tiled = whole;
      tiled.name += "_2x1";
      tiled.plan.split_size = 2;
      tiled.plan.grid = "2x1";
      rows.push_back(tiled);
    }
  // One sample a micro and replica: two together are enough to normalise.
  rows.push_back({.name = "replicas_of_one_sample_norm_global",
                  .model = resnet_v1(13, 12),
                  .plan = {.batch_size = 2, .parts = 2, .split_size = 2, .replicas = 2, .batch_norm = "global"}});
  rows.push_back({.name = "replicas_clipped",
                  .model = resnet_v1(13, 12),
                  .plan = {.batch_size = 4, .parts = 2, .split_size = 2, .grid = "1x2", .replicas = 2},
                  .clip_norm = 0.1});
  return rows;
}

// The stages behind the spatial ones share the samples of a micro.
std::vector<Row> local_data_parallelism() {
  std::vector<Row> rows;
  for (const std::int64_t ways : {2, 4})
    for (const char* grid : {"2x2", "1x3"})
      rows.push_back({.name = concat("local_dp_", ways, "_behind_", grid),
                      .model = resnet_v1(17, 15),
                      .plan = {.batch_size = 8, .parts = 2, .split_size = 2, .grid = grid, .local_dp = ways}});
  rows.push_back(
      {.name = "local_dp_2_three_stages_zero_bubble",
       .model = resnet_v2(15, 14),
       .plan = {
           .batch_size = 6, .parts = 3, .split_size = 3, .grid = "2x1", .schedule = "zero-bubble", .local_dp = 2}});
  rows.push_back({.name = "local_dp_one_sample_each",
                  .model = resnet_v2(15, 14),
                  .plan = {.batch_size = 8, .parts = 2, .split_size = 3, .grid = "2x1", .local_dp = 4}});
  rows.push_back({.name = "local_dp_2_replicas_norm_global",
                  .model = resnet_v1(15, 14),
                  .plan = {.batch_size = 4,
                           .parts = 2,
                           .split_size = 2,
                           .grid = "1x2",
                           .local_dp = 2,
                           .replicas = 2,
                           .batch_norm = "global"}});
  rows.push_back(
      {.name = "local_dp_2_fused",
       .model = resnet_v2(17, 18),
       .plan = {.batch_size = 4, .split_size = 2, .grid = "2x2", .local_dp = 2, .fused_layers = 2, .halo_d2 = true}});
  rows.push_back({.name = "amoebanet_local_dp_2",
                  .model = amoebanet(67, 65),
                  .plan = {.batch_size = 4, .parts = 2, .split_size = 3, .grid = "1x2", .local_dp = 2}});
  return rows;
}

// Two bundles on each of two pretended nodes.
std::vector<Row> bundles() {
  std::vector<Row> rows;
  for (const char* sync : {"flat", "hierarchical"}) {
    const PlanOptions two_by_two{
        .batch_size = 4, .parts = 2, .replicas = 4, .grad_sync = sync, .num_hp = 2, .ranks_per_node = 4};
    rows.push_back({.name = concat("bundles_", sync), .model = resnet_v1(13, 12), .plan = two_by_two});
    rows.push_back(
        {.name = concat("bundles_front_of_one_cell_", sync), .model = resnet_v2(12, 13), .plan = two_by_two});
    rows.back().plan.balance = "1,4";
    rows.push_back({.name = concat("bundles_2x1_", sync), .model = resnet_v1(13, 12), .plan = two_by_two});
    rows.back().plan.grid = "2x1";
    rows.back().plan.ranks_per_node = 6;
    rows.push_back({.name = concat("dp_only_", sync), .model = resnet_v1(13, 12), .plan = two_by_two});
    rows.back().plan.dp_only = true;
    rows.back().plan.ranks_per_node = 2;
    // Copies of a stage stand on uneven numbers of ranks of a node.
    rows.push_back({.name = concat("uneven_nodes_", sync), .model = resnet_v1(13, 12), .plan = two_by_two});
    rows.back().plan.num_hp = std::nullopt;
    rows.back().plan.split_size = 2;
    rows.back().plan.replicas = 3;
    rows.back().plan.ranks_per_node = 4;
  }
  rows.push_back(
      {.name = "bundle_alone", .model = resnet_v1(13, 12), .plan = {.batch_size = 4, .parts = 2, .num_hp = 1}});
  rows.push_back({.name = "bundles_clipped_hierarchical",
                  .model = resnet_v1(13, 12),
                  .plan = {.batch_size = 4, .replicas = 4, .grad_sync = "hierarchical", .num_hp = 2},
                  .clip_norm = 0.1});
  return rows;
}

// Cuts by hand, and values that cross several of them.
std::vector<Row> cuts_and_skips() {
  std::vector<Row> rows;
  rows.push_back(
      {.name = "balance_1_3_1", .model = resnet_v1(14, 12), .plan = {.batch_size = 4, .parts = 2, .balance = "1,3,1"}});
  rows.push_back({.name = "balance_3_1_1_by_gpipe",
                  .model = resnet_v2(14, 12),
                  .plan = {.batch_size = 4, .parts = 2, .balance = "3,1,1", .schedule = "gpipe"}});
  rows.push_back({.name = "balance_by_memory",
                  .model = resnet_v1(14, 12),
                  .plan = {.batch_size = 4, .parts = 2, .split_size = 3, .balance_by = "memory"}});
  for (const std::int64_t stages : {4, 5})
    for (const auto& [schedule, name] : schedules)
      rows.push_back({.name = concat("long_skips_", stages, "_stages_", name),
                      .plan = pipeline(schedule, stages, 3),
                      .graph = long_skips(12, 11)});
  rows.push_back({.name = "long_skips_grids", .plan = pipeline("1f1b", 5, 2), .graph = long_skips(13, 15)});
  rows.back().plan.grid = "2x2,1x1,3x1,1x2,1x1";
  rows.push_back(
      {.name = "long_skips_fused_zero_bubble", .plan = pipeline("zero-bubble", 3, 2), .graph = long_skips(13, 15)});
  rows.back().plan.grid = "2x2,2x1";
  rows.back().plan.halo_d2 = true;
  rows.back().plan.fused_layers = 2;
  rows.push_back({.name = "long_skips_nothing_recomputed",
                  .plan = pipeline("zero-bubble", 4, 2),
                  .recompute = Recompute::none,
                  .graph = long_skips(13, 15)});
  rows.back().plan.grid = "1x2";
  rows.push_back({.name = "long_skips_local_dp", .plan = pipeline("zero-bubble", 5, 2), .graph = long_skips(13, 15)});
  rows.back().plan.grid = "1x3";
  rows.back().plan.local_dp = 2;
  for (const std::int64_t stages : {3, 5})
    rows.push_back({.name = concat("amoebanet_", stages, "_stages"),
                    .model = amoebanet(67, 65),
                    .plan = pipeline(stages == 3 ? "zero-bubble" : "1f1b", stages, 2)});
  rows.push_back(
      {.name = "clipped", .model = resnet_v1(14, 12), .plan = pipeline("zero-bubble", 3, 4), .clip_norm = 0.1});
  return rows;
}

// A bucket of gradients leaves before backward ends: it must not leave too early.
std::vector<Row> early_buckets() {
  std::vector<Row> rows;
  for (const std::string schedule : {"1f1b", "zero-bubble"}) {
    const PlanOptions plan{.batch_size = 4, .parts = 2, .schedule = schedule, .replicas = 2};
    const std::string name = schedule == "1f1b" ? "wide_1f1b" : "wide_zero_bubble";
    rows.push_back({.name = name, .plan = plan, .graph = wide()});
    rows.push_back({.name = name + "_two_stages", .plan = plan, .graph = wide()});
    rows.back().plan.split_size = 2;
  }
  rows.push_back(rows.back());
  rows.back().name = "wide_hierarchical";
  rows.back().plan.replicas = 3;
  rows.back().plan.grad_sync = "hierarchical";
  rows.back().plan.ranks_per_node = 4;
  rows.push_back({.name = "wide_tiles", .plan = {.batch_size = 4, .parts = 2, .grid = "1x2"}, .graph = wide()});
  // The first backward is the last one, too. bidirectional_test.cpp has the other schedules.
  for (const auto& [schedule, name] : schedules) {
    rows.push_back({.name = concat("wide_one_micro_", name), .plan = pipeline(schedule, 2, 1), .graph = wide()});
    rows.back().plan.replicas = 2;
    rows.push_back(rows.back());
    rows.back().name += "_hierarchical";
    rows.back().plan.grad_sync = "hierarchical";
    rows.back().plan.ranks_per_node = 3;
  }
  return rows;
}

// Which elements are dropped is a matter of the sample and the place, not of the plan.
std::vector<Row> dropout() {
  std::vector<Row> rows;
  for (const auto& [schedule, name] : schedules)
    rows.push_back({.name = concat("dropout_", name), .plan = pipeline(schedule, 3, 3), .graph = with_dropout(11, 12)});
  rows.push_back(
      {.name = "dropout_grid", .plan = {.batch_size = 4, .parts = 2, .grid = "2x3"}, .graph = with_dropout(11, 12)});
  rows.push_back({.name = "dropout_fused",
                  .plan = {.batch_size = 4, .grid = "2x2", .fused_layers = 3, .halo_d2 = true},
                  .graph = with_dropout(13, 12)});
  rows.push_back({.name = "dropout_replicas",
                  .plan = {.batch_size = 4, .parts = 2, .replicas = 2},
                  .graph = with_dropout(11, 12)});
  rows.push_back({.name = "dropout_replicas_norm_global",
                  .plan = {.batch_size = 4, .parts = 2, .split_size = 2, .replicas = 2, .batch_norm = "global"},
                  .graph = with_dropout(11, 12)});
  rows.push_back({.name = "dropout_local_dp",
                  .plan = {.batch_size = 8, .parts = 2, .split_size = 3, .grid = "1x2", .local_dp = 4},
                  .graph = with_dropout(11, 12)});
  return rows;
}

// The table cannot see this: its reference has the same micros. Without norms, micros are no more than a matter of
// order.
TEST(Dropout, DropsTheSameElementsHoweverTheBatchIsCut) {
  Graph graph;
  graph.cell("all");
  Value x = graph.relu(graph.conv(graph.input({3, 7, 6}), {.out = 4, .kernel = 3, .pad = 1}, "conv"));
  x = graph.flatten(graph.global_avg_pool(graph.dropout(x, 0.4)));
  graph.cross_entropy(graph.linear(graph.dropout(x, 0.5), {.out = 5}, "fc"));
  const auto images =
      std::make_shared<SyntheticImages>(SyntheticOptions{.classes = 5, .height = 7, .width = 6, .size = 64, .seed = 5});
  const TrainOptions options{.steps = 3, .optimizer = {.lr = 0.1}, .seed = 3, .dtype = at::kDouble};
  Trainer whole(graph, make_plan(graph, {.batch_size = 8}), options, images);
  Trainer cut(graph, make_plan(graph, {.batch_size = 8, .parts = 4}), options, images);
  for (int step = 0; step < 3; ++step) EXPECT_NEAR(whole.step().loss, cut.step().loss, 1e-12) << "step " << step + 1;
}

std::string name_of(const testing::TestParamInfo<Row>& row) { return row.param.name; }

INSTANTIATE_TEST_SUITE_P(Shapes, Pipeline, testing::ValuesIn(every_shape()), name_of);
INSTANTIATE_TEST_SUITE_P(Grids, Pipeline, testing::ValuesIn(behind_grids()), name_of);
INSTANTIATE_TEST_SUITE_P(Replicas, Pipeline, testing::ValuesIn(replicas()), name_of);
INSTANTIATE_TEST_SUITE_P(LocalDp, Pipeline, testing::ValuesIn(local_data_parallelism()), name_of);
INSTANTIATE_TEST_SUITE_P(Bundles, Pipeline, testing::ValuesIn(bundles()), name_of);
INSTANTIATE_TEST_SUITE_P(Cuts, Pipeline, testing::ValuesIn(cuts_and_skips()), name_of);
INSTANTIATE_TEST_SUITE_P(Buckets, Pipeline, testing::ValuesIn(early_buckets()), name_of);
INSTANTIATE_TEST_SUITE_P(Dropout, Pipeline, testing::ValuesIn(dropout()), name_of);

}  // namespace
}  // namespace tessera::golden
