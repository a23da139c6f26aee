// Every grid trains like one device: uneven tiles, odd sizes, margins wider than a tile, one margin for several blocks.
#include "golden/plans.h"

namespace tessera::golden {
namespace {

class Spatial : public testing::TestWithParam<Row> {};

TEST_P(Spatial, TrainsLikeOneDevice) { expect_like_one_device(GetParam()); }

PlanOptions grid(std::string grid, std::int64_t batch = 4) { return {.batch_size = batch, .grid = std::move(grid)}; }

PlanOptions fused(std::string grid, std::int64_t layers) {
  return {.batch_size = 4, .grid = std::move(grid), .fused_layers = layers, .halo_d2 = true};
}

std::vector<Row> rows() {
  std::vector<Row> rows;
  const auto add = [&](Row row) { rows.push_back(std::move(row)); };
  for (const char* g : {"1x2", "2x1", "2x2", "1x4", "3x2", "3x5"}) {
    add({.name = concat("resnet_v1_", g), .model = resnet_v1(33, 37), .plan = grid(g)});
    add({.name = concat("resnet_v2_", g), .model = resnet_v2(34, 31), .plan = grid(g)});
  }
  for (const char* g : {"1x2", "2x2", "3x2"})
    add({.name = concat("resnet18_", g), .model = resnet18(130, 75), .plan = grid(g, 2)});
  add({.name = "resnet18_96_1x3", .model = resnet18(96, 96), .plan = grid("1x3", 2)});
  add({.name = "resnet18_97_3x1", .model = resnet18(97, 97), .plan = grid("3x1", 2)});
  for (const char* g : {"2x2", "1x3"})
    add({.name = concat("resnet50_", g), .model = resnet50(96, 97), .plan = grid(g)});
  for (const char* g : {"1x2", "2x1", "2x2", "1x4", "3x2"})
    add({.name = concat("amoebanet_", g), .model = amoebanet(97, 130), .plan = grid(g, 2)});
  add({.name = "amoebanet_96_2x2", .model = amoebanet(96, 96), .plan = grid("2x2", 2)});
  add({.name = "amoebanet_130x75_2x1", .model = amoebanet(130, 75), .plan = grid("2x1", 2)});

  // Tiles of one or two pixels: margins reach over several neighbours.
  add({.name = "resnet_v1_thin_tiles", .model = resnet_v1(16, 18), .plan = grid("4x4")});
  add({.name = "resnet_v2_many_tiles_in_a_row", .model = resnet_v2(12, 33), .plan = grid("1x8")});
  add({.name = "fused_over_thin_tiles", .model = resnet_v2(16, 18), .plan = fused("4x4", 4)});

  for (const std::int64_t layers : {1, 2, 3, 4}) {
    add({.name = concat("resnet_v1_fused_", layers), .model = resnet_v1(33, 37), .plan = fused("2x2", layers)});
    add({.name = concat("resnet_v2_fused_", layers), .model = resnet_v2(34, 31, 20), .plan = fused("2x2", layers)});
  }
  add({.name = "resnet18_fused_2", .model = resnet18(97, 75), .plan = fused("2x2", 2)});
  add({.name = "resnet50_fused_3", .model = resnet50(96, 97), .plan = fused("2x2", 3)});
  add({.name = "amoebanet_fused_1", .model = amoebanet(97, 130), .plan = fused("2x2", 1)});
  add({.name = "amoebanet_fused_3", .model = amoebanet(97, 130), .plan = fused("1x2", 3)});
  add({.name = "fused_3x5", .model = resnet_v2(47, 65), .plan = fused("3x5", 2)});

  // Micros, and nothing made again.
  add({.name = "micros", .model = resnet_v2(33, 29), .plan = {.batch_size = 6, .parts = 3, .grid = "2x2"}});
  add({.name = "nothing_recomputed", .model = resnet_v2(33, 29), .plan = grid("2x2"), .recompute = Recompute::none});
  add({.name = "blocks_recomputed", .model = resnet_v2(33, 29), .plan = grid("2x2"), .recompute = Recompute::block});
  add({.name = "blocks_recomputed_fused",
       .model = resnet18(97, 75),
       .plan = fused("2x2", 2),
       .recompute = Recompute::block});
  add({.name = "blocks_recomputed_amoebanet",
       .model = amoebanet(97, 130),
       .plan = grid("1x2", 2),
       .recompute = Recompute::block});
  add({.name = "clipped", .model = resnet_v1(33, 29), .plan = grid("2x2"), .clip_norm = 0.1});

  // Into one rank, into another grid, and back into a finer one.
  add({.name = "join",
       .model = resnet_v2(33, 29),
       .plan = {.batch_size = 4, .split_size = 2, .num_spatial_parts = "4"}});
  add({.name = "regrid",
       .model = resnet_v2(33, 29),
       .plan = {.batch_size = 4, .split_size = 3, .num_spatial_parts = "4,2"}});
  add({.name = "split_again",
       .model = resnet_v2(33, 29),
       .plan = {.batch_size = 4, .split_size = 3, .grid = "1x2,1x1,2x2", .spatial_size = 3}});
  add({.name = "amoebanet_seeds_layout",
       .model = amoebanet(97, 128),
       .plan = {
           .batch_size = 2, .split_size = 2, .num_spatial_parts = "4", .spatial_size = 1, .slice_method = "vertical"}});
  add({.name = "amoebanet_regrid_fused",
       .model = amoebanet(97, 128),
       .plan = {.batch_size = 2, .split_size = 3, .num_spatial_parts = "4,2", .fused_layers = 2, .halo_d2 = true}});
  return rows;
}

INSTANTIATE_TEST_SUITE_P(Plans, Spatial, testing::ValuesIn(rows()), [](const auto& row) { return row.param.name; });

// The published systems' way is there for those who want it. It is another network: not equal, and the test knows.
TEST(SpatialLocalNorm, IsNotLikeOneDeviceButTrains) {
  const ModelOptions model = resnet_v1(32, 32);
  const Graph graph = builtin_models().build(model);
  const Plan plan = make_plan(graph, {.batch_size = 4, .grid = "2x1", .batch_norm = "local"});
  if (plan.ranks() > test::most_ranks(1000)) GTEST_SKIP() << "needs two ranks";
  const auto images = std::make_shared<SyntheticImages>(SyntheticOptions{.classes = 5, .size = 64, .seed = 5});
  test::on_ranks(2, [&](Communicator& world) {
    const auto result = verify(graph, plan, {.steps = 2, .seed = 3, .dtype = at::kDouble}, images, &world);
    EXPECT_FALSE(result.equal()) << words_for(result);
    EXPECT_TRUE(std::isfinite(result.largest())) << result.worst.front().what;
  });
}

}  // namespace
}  // namespace tessera::golden
