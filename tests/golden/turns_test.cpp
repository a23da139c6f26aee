// A rank that works through several tiles in turn trains like one device: alone and in company, with every kind of
// plan, and wherever values wait.
#include "golden/plans.h"

namespace tessera::golden {
namespace {

class Turns : public testing::TestWithParam<Row> {};

TEST_P(Turns, TrainLikeOneDevice) { expect_like_one_device(GetParam()); }

PlanOptions turns(std::string grid, std::int64_t batch = 2) { return {.batch_size = batch, .turns = std::move(grid)}; }

// Names of tests have no hyphens.
std::string words_of(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

std::vector<Row> rows() {
  std::vector<Row> rows;
  const auto add = [&](Row row) { rows.push_back(std::move(row)); };
  for (const char* g : {"1x2", "2x1", "3x2", "4x3"}) {
    add({.name = concat("resnet_v1_", g), .model = resnet_v1(33, 37), .plan = turns(g)});
    add({.name = concat("resnet_v2_", g), .model = resnet_v2(34, 31), .plan = turns(g)});
    add({.name = concat("unet_", g), .model = unet(47, 38), .plan = turns(g)});
  }
  add({.name = "resnet18_3x2", .model = resnet18(97, 75), .plan = turns("3x2")});
  add({.name = "resnet50_2x2", .model = resnet50(96, 97), .plan = turns("2x2", 4)});
  add({.name = "amoebanet_2x3", .model = amoebanet(97, 130), .plan = turns("2x3")});
  add({.name = "thin_tiles", .model = resnet_v2(16, 18), .plan = turns("4x4", 4)});
  add({.name = "unet_bilinear", .model = unet(47, 38, "bilinear"), .plan = turns("2x3")});

  // One exchange of margins for several cells.
  for (const std::int64_t layers : {1, 3}) {
    PlanOptions fused = turns("3x2", 4);
    fused.halo_d2 = true;
    fused.fused_layers = layers;
    add({.name = concat("fused_", layers), .model = resnet_v2(34, 31, 20), .plan = fused});
    add({.name = concat("fused_blocks_", layers),
         .model = resnet_v1(33, 37),
         .plan = fused,
         .recompute = {Recompute::block, 2}});
  }

  // In company: neighbours on the same rank and on others.
  add({.name = "on_1x2", .model = resnet_v2(34, 31), .plan = {.batch_size = 2, .grid = "1x2", .turns = "3x2"}});
  add({.name = "on_2x2", .model = resnet_v1(33, 37), .plan = {.batch_size = 2, .grid = "2x2", .turns = "2x1"}});
  add({.name = "on_2x2_fused",
       .model = resnet_v2(34, 31),
       .plan = {.batch_size = 2, .grid = "2x2", .turns = "2x2", .fused_layers = 2, .halo_d2 = true}});
  add({.name = "join",
       .model = resnet_v2(33, 29),
       .plan = {.batch_size = 4, .split_size = 2, .num_spatial_parts = "2", .turns = "2x2,1x1"}});
  add({.name = "regrid",
       .model = resnet_v2(33, 29),
       .plan = {.batch_size = 4, .split_size = 3, .num_spatial_parts = "2,3", .turns = "2x2,1x2,2x1"}});
  add({.name = "ways",
       .model = resnet_v2(33, 29),
       .plan = {.batch_size = 4, .split_size = 2, .num_spatial_parts = "2", .turns = "1x2,2x1", .local_dp = 2}});
  add({.name = "replicas", .model = resnet_v1(33, 37), .plan = {.batch_size = 2, .turns = "2x2", .replicas = 2}});
  add({.name = "replicas_norm_global",
       .model = resnet_v1(33, 37),
       .plan = {.batch_size = 2, .turns = "2x2", .replicas = 2, .batch_norm = "global"}});

  for (const char* schedule : {"gpipe", "1f1b", "zero-bubble", "gems-mast", "gems-master", "chimera"})
    add({.name = concat("two_stages_", words_of(schedule)),
         .model = resnet_v2(33, 29),
         .plan = {.batch_size = 4, .parts = 2, .split_size = 2, .turns = "2x2,1x3", .schedule = schedule}});
  add({.name = "chimera_on_tiles",
       .model = resnet_v2(33, 29),
       .plan = {.batch_size = 4,
                .parts = 4,
                .split_size = 2,
                .grid = "1x2,2x1",
                .turns = "2x2,1x2",
                .schedule = "chimera"}});
  add({.name = "long_skips",
       .model = {},
       .plan = {.batch_size = 4, .parts = 2, .split_size = 3, .turns = "2x2,1x1,1x2"},
       .graph = long_skips(21, 19)});
  add({.name = "dropout", .model = {}, .plan = turns("2x3", 4), .graph = with_dropout(21, 19)});
  add({.name = "clipped", .model = resnet_v1(33, 29), .plan = turns("2x2", 4), .clip_norm = 0.1});

  // Made again, from one cell or several; and waiting in a file.
  for (const StoreKind store : {StoreKind::device, StoreKind::file}) {
    const char* where = store == StoreKind::file ? "_in_a_file" : "";
    add({.name = concat("nothing_recomputed", where),
         .model = resnet_v2(33, 29),
         .plan = turns("2x2", 4),
         .recompute = Recompute::none,
         .store = store});
    for (const int cells : {1, 2, 5})
      add({.name = concat("blocks_of_", cells, where),
           .model = resnet_v2(33, 29, 20),
           .plan = turns("2x2", 4),
           .recompute = {Recompute::block, cells},
           .store = store});
    add({.name = concat("unet_blocks", where),
         .model = unet(47, 38),
         .plan = turns("2x2"),
         .recompute = {Recompute::block, 2},
         .store = store});
    add({.name = concat("chimera_blocks", where),
         .model = resnet_v2(33, 29),
         .plan = {.batch_size = 4, .parts = 4, .split_size = 2, .turns = "2x2,1x2", .schedule = "chimera"},
         .recompute = Recompute::block,
         .store = store});
  }
  // Gradients of one value come back from neighbours and from later stages.
  for (const char* turns : {"2x2,1x1,1x2", "2x2,2x1,1x2"})
    add({.name = concat("long_skips_in_a_file_", std::string(turns).substr(4, 1)),
         .model = {},
         .plan = {.batch_size = 4, .parts = 2, .split_size = 3, .turns = turns},
         .graph = long_skips(21, 19),
         .store = StoreKind::file});
  add({.name = "unet_stages_in_a_file",
       .model = unet(47, 38),
       .plan = {.batch_size = 4, .parts = 2, .split_size = 3, .turns = "2x2,1x2,2x1"},
       .store = StoreKind::file});
  add({.name = "one_tile_in_a_file", .model = resnet_v1(33, 37), .store = StoreKind::file});
  return rows;
}

INSTANTIATE_TEST_SUITE_P(Table, Turns, testing::ValuesIn(rows()), [](const auto& row) { return row.param.name; });

}  // namespace
}  // namespace tessera::golden
