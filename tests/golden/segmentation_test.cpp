// A class for every pixel: a U trains like one device on every plan, whatever its image's size, whether it goes up by
// transposed convolutions or bilinear; skips cross stages, masks are read tile by tile.
#include <ATen/core/Tensor.h>

#include <mutex>

#include "golden/plans.h"

namespace tessera::golden {
namespace {

class Segmentation : public testing::TestWithParam<Row> {};

TEST_P(Segmentation, TrainsLikeOneDevice) { expect_like_one_device(GetParam()); }

const std::vector<std::string> kinds{"transposed", "bilinear"};

PlanOptions grid(std::string grid, std::int64_t batch = 2) { return {.batch_size = batch, .grid = std::move(grid)}; }

// Two samples a micro.
PlanOptions stages(std::int64_t count, std::int64_t micros, const std::string& schedule = "1f1b") {
  return {.batch_size = 2 * micros, .parts = micros, .split_size = count, .schedule = schedule};
}

std::vector<Row> tiles() {
  std::vector<Row> rows;
  for (const auto& kind : kinds) {
    for (const char* g : {"1x2", "2x1", "2x2", "3x2"})
      rows.push_back({.name = concat(kind, "_", g), .model = unet(33, 38, kind), .plan = grid(g)});
    // 97 rows are 49 + 48, then 25 + 24, and twice 25 is not 49: what is above does not lie under what is below.
    rows.push_back({.name = concat(kind, "_97_2x2"), .model = unet(97, 97, kind, 4), .plan = grid("2x2")});
    rows.push_back({.name = concat(kind, "_130x75_3x2"), .model = unet(130, 75, kind, 3), .plan = grid("3x2")});
    rows.push_back({.name = concat(kind, "_thin_tiles"), .model = unet(22, 27, kind), .plan = grid("5x3")});
    for (const std::int64_t layers : {1, 2, 3})
      rows.push_back({.name = concat(kind, "_fused_", layers),
                      .model = unet(35, 41, kind),
                      .plan = {.batch_size = 2, .grid = "2x2", .fused_layers = layers, .halo_d2 = true}});
    rows.push_back({.name = concat(kind, "_all_fused"),
                    .model = unet(35, 41, kind),
                    .plan = {.batch_size = 2, .grid = "1x3", .fused_layers = 6, .halo_d2 = true}});
  }
  rows.push_back({.name = "micros", .model = unet(33, 29), .plan = {.batch_size = 6, .parts = 3, .grid = "2x2"}});
  rows.push_back({.name = "nothing_recomputed",
                  .model = unet(33, 29, "bilinear"),
                  .plan = grid("2x2"),
                  .recompute = Recompute::none});
  for (const auto& kind : kinds)
    rows.push_back({.name = concat(kind, "_blocks_recomputed"),
                    .model = unet(33, 29, kind),
                    .plan = grid("2x2"),
                    .recompute = Recompute::block});
  rows.push_back({.name = "clipped", .model = unet(33, 29), .plan = grid("2x2"), .clip_norm = 0.1});
  return rows;
}

// Blocks of 3x2 from what is not point-wise and cannot be made again, an odd number of them.
Graph tall_blocks(std::int64_t height, std::int64_t width) {
  Graph g;
  g.cell("a");
  Value x = conv_norm_relu(g, g.input({3, height, width}), {.out = 4, .kernel = 3, .pad = 1}, "a");
  g.cell("b");
  const Value small = g.max_pool(x, {.kernel = {3, 2}, .pad = 0, .pad_end = Pair{2, 1}});
  const Pair size{height, width};
  const Value up = g.conv_transpose(small, {.out = 5, .scale = {3, 2}, .size = size, .bias = false}, "up");
  g.cell("c");
  const Value half = g.conv(x, {.out = 3, .kernel = 3, .stride = 2, .pad = 1, .bias = true}, "half");
  x = g.concat({up, g.upsample(half, {.size = size}), x});
  g.cell("head");
  g.pixel_cross_entropy(g.conv(x, {.out = 4, .kernel = 3, .pad = 1, .bias = true}, "head"));
  return g;
}

std::vector<Row> other_networks() {
  std::vector<Row> rows;
  for (const char* g : {"1x1", "2x2", "3x1"})
    rows.push_back({.name = concat("tall_blocks_", g), .plan = grid(g), .graph = tall_blocks(17, 15)});
  rows.push_back({.name = "tall_blocks_fused",
                  .plan = {.batch_size = 2, .grid = "2x2", .fused_layers = 4, .halo_d2 = true},
                  .graph = tall_blocks(19, 16)});
  rows.push_back({.name = "tall_blocks_4_stages", .plan = stages(4, 3, "zero-bubble"), .graph = tall_blocks(17, 15)});
  rows.back().plan.grid = "2x1,1x2,1x3";
  return rows;
}

std::vector<Row> pipelines() {
  std::vector<Row> rows;
  const auto add = [&](std::string name, const ModelOptions& model, const PlanOptions& plan) -> PlanOptions& {
    rows.push_back({.name = std::move(name), .model = model, .plan = plan});
    return rows.back().plan;
  };
  for (const auto& kind : kinds) {
    // The must of the issue: four tiles of both stages, and of the first only.
    add(kind + "_2x2_two_stages", unet(45, 34, kind), stages(2, 2)).grid = "2x2,2x2";
    add(kind + "_2x2_then_one", unet(45, 34, kind), stages(2, 2)).grid = "2x2";
    add(kind + "_3_stages_4_micros", unet(29, 26, kind), stages(3, 4));
    add(kind + "_6_stages", unet(29, 26, kind), stages(6, 3, "zero-bubble"));
    add(kind + "_gpipe", unet(29, 26, kind), stages(3, 2, "gpipe"));
    add(kind + "_regrid", unet(37, 39, kind), stages(4, 2)).grid = "2x2,1x2,1x3,2x1";
  }
  // Down on tiles, the bottom on one rank, up on other tiles.
  add("split_again", unet(37, 39), stages(3, 2, "zero-bubble")).grid = "2x2,1x1,3x1";
  PlanOptions& fused = add("fused_two_stages", unet(37, 39), stages(2, 2, "zero-bubble"));
  fused.grid = "2x2,1x2";
  fused.halo_d2 = true;
  fused.fused_layers = 2;
  add("seeds_layout", unet(45, 34), stages(2, 1)).num_spatial_parts = "4";
  return rows;
}

std::vector<Row> copies() {
  std::vector<Row> rows;
  const auto add = [&](std::string name, const PlanOptions& plan) -> PlanOptions& {
    rows.push_back({.name = std::move(name), .model = unet(29, 26), .plan = plan});
    return rows.back().plan;
  };
  add("2_replicas", {.batch_size = 2, .replicas = 2});
  add("2_replicas_norm_global", {.batch_size = 2, .replicas = 2, .batch_norm = "global"});
  PlanOptions& tiled = add("2_replicas_2x1_two_stages", stages(2, 2));
  tiled.grid = "2x1";
  tiled.replicas = 2;
  // Half of a micro's samples each, behind the tiles: their masks, whole.
  PlanOptions& shared = add("local_dp_2", stages(2, 2));
  shared.grid = "2x2";
  shared.local_dp = 2;
  PlanOptions& fused = add("local_dp_2_fused", stages(3, 2));
  fused.grid = "1x2";
  fused.local_dp = 2;
  fused.halo_d2 = true;
  PlanOptions& bundles = add("bundles", {.batch_size = 2, .replicas = 4, .num_hp = 2, .ranks_per_node = 4});
  bundles.grad_sync = "hierarchical";
  for (const char* schedule : {"gems-mast", "gems-master", "chimera"}) {
    const std::string name = schedule == std::string("chimera") ? "chimera" : std::string(schedule).substr(5);
    add(name, stages(3, 2, schedule));
    add(name + "_tiles", stages(2, 2, schedule)).grid = "1x2,2x1";
  }
  PlanOptions& times = add("master_times_2_replicas", stages(2, 1, "gems-master"));
  times.times = 2;
  times.replicas = 2;
  return rows;
}

std::string name_of(const testing::TestParamInfo<Row>& row) { return row.param.name; }

INSTANTIATE_TEST_SUITE_P(Tiles, Segmentation, testing::ValuesIn(tiles()), name_of);
INSTANTIATE_TEST_SUITE_P(Others, Segmentation, testing::ValuesIn(other_networks()), name_of);
INSTANTIATE_TEST_SUITE_P(Pipelines, Segmentation, testing::ValuesIn(pipelines()), name_of);
INSTANTIATE_TEST_SUITE_P(Copies, Segmentation, testing::ValuesIn(copies()), name_of);

// Masks of which the lower left has no labels, more of it in some images than in others, and of some images nothing
// has: tiles, micros, replicas and directions all count differently.
class PartlyLabelled final : public ImageSource {
 public:
  PartlyLabelled(std::int64_t height, std::int64_t width, bool any)
      : images_({.classes = 4, .height = height, .width = width, .size = 64, .seed = 5, .mask_classes = 4}),
        any_(any) {}
  std::int64_t size() const override { return images_.size(); }
  int classes() const override { return images_.classes(); }
  std::array<std::int64_t, 3> image_shape() const override { return images_.image_shape(); }
  std::int64_t label(std::int64_t index) const override { return images_.label(index); }
  int mask_classes() const override { return images_.mask_classes(); }
  void read(ReadKey key, Interval rows, Interval columns, const at::Tensor& out) const override {
    images_.read(key, rows, columns, out);
  }
  void read_mask(ReadKey key, Interval rows, Interval columns, const at::Tensor& out) const override {
    images_.read_mask(key, rows, columns, out);
    for (std::int64_t y = rows.begin; y < rows.end; ++y)
      for (std::int64_t x = columns.begin; x < columns.end; ++x)
        if (!any_ || 3 * y > x * (key.index % 5)) out[y - rows.begin][x - columns.begin] = ignored_label;
  }
  std::string describe() const override { return "partly labelled images"; }

 private:
  const SyntheticImages images_;
  const bool any_;
};

class PartlyLabelledMasks : public testing::TestWithParam<Row> {};

TEST_P(PartlyLabelledMasks, TrainLikeOneDevice) {
  const Shape& image = GetParam().model.image;
  expect_like_one_device(GetParam(), std::make_shared<PartlyLabelled>(image.height, image.width, true));
}

std::vector<Row> partly_labelled() {
  std::vector<Row> rows;
  for (const auto& [name, plan] : std::vector<std::pair<std::string, PlanOptions>>{
           {"one_rank", {.batch_size = 4}},  // beside torch's ignore_index
           {"one_rank_micros", {.batch_size = 6, .parts = 3}},
           {"2x2", {.batch_size = 4, .parts = 2, .grid = "2x2"}},
           {"2_replicas", {.batch_size = 4, .parts = 2, .replicas = 2}},
           {"local_dp", {.batch_size = 4, .split_size = 2, .grid = "1x2", .local_dp = 2}},
           {"chimera", {.batch_size = 8, .parts = 4, .split_size = 2, .grid = "1x2,2x1", .schedule = "chimera"}}})
    rows.push_back({.name = name, .model = unet(27, 22), .plan = plan});
  return rows;
}

INSTANTIATE_TEST_SUITE_P(Plans, PartlyLabelledMasks, testing::ValuesIn(partly_labelled()), name_of);

TEST(PartlyLabelledMasks, ABatchWithoutLabelsChangesNoParameter) {
  const Graph graph = builtin_models().build(unet(9, 8));
  const auto images = std::make_shared<PartlyLabelled>(9, 8, false);
  Trainer trainer(graph, make_plan(graph, {.batch_size = 2}), {.steps = 1, .dtype = at::kDouble}, images);
  const at::Tensor before = trainer.parameters()[0]->flat_values().clone();
  EXPECT_EQ(trainer.step().loss, 0);
  EXPECT_TRUE(trainer.parameters()[0]->flat_values().equal(before));
}

// A micro has its share of the labelled pixels, not of the samples: without norms, micros are a matter of order.
TEST(PartlyLabelledMasks, TheLossDoesNotDependOnHowTheBatchIsCut) {
  Graph graph;
  graph.cell("all");
  const Value x = graph.relu(graph.conv(graph.input({3, 12, 11}), {.out = 4, .kernel = 3, .pad = 1}, "conv"));
  graph.pixel_cross_entropy(graph.conv(x, {.out = 4, .bias = true}, "head"));
  const auto images = std::make_shared<PartlyLabelled>(12, 11, true);
  const TrainOptions options{.steps = 3, .optimizer = {.lr = 0.1}, .seed = 3, .dtype = at::kDouble};
  Trainer whole(graph, make_plan(graph, {.batch_size = 8}), options, images);
  Trainer cut(graph, make_plan(graph, {.batch_size = 8, .parts = 4}), options, images);
  for (int step = 0; step < 3; ++step) EXPECT_NEAR(whole.step().loss, cut.step().loss, 1e-12) << "step " << step + 1;
}

// Counts what is read of masks and remembers the largest piece of it.
class CountedMasks final : public ImageSource {
 public:
  CountedMasks(std::int64_t height, std::int64_t width)
      : images_({.classes = 4, .height = height, .width = width, .size = 64, .mask_classes = 4}) {}
  std::int64_t size() const override { return images_.size(); }
  int classes() const override { return images_.classes(); }
  std::array<std::int64_t, 3> image_shape() const override { return images_.image_shape(); }
  std::int64_t label(std::int64_t index) const override { return images_.label(index); }
  int mask_classes() const override { return images_.mask_classes(); }
  void read(ReadKey key, Interval rows, Interval columns, const at::Tensor& out) const override {
    images_.read(key, rows, columns, out);
  }
  void read_mask(ReadKey key, Interval rows, Interval columns, const at::Tensor& out) const override {
    images_.read_mask(key, rows, columns, out);
    const std::lock_guard lock(mutex_);
    pixels += rows.size() * columns.size();
    largest = std::max(largest, rows.size() * columns.size());
  }
  std::string describe() const override { return "counted masks"; }

  mutable std::int64_t pixels = 0, largest = 0;

 private:
  const SyntheticImages images_;
  mutable std::mutex mutex_;
};

TEST(Masks, EveryLabelIsReadOnceByTheRankThatOwnsItsPixel) {
  if (!test::ranks_are_threads()) GTEST_SKIP() << "the ranks must share the counts";
  const Graph graph = builtin_models().build(unet(31, 26));
  for (const bool fused : {false, true}) {
    const PlanOptions options{
        .batch_size = 4, .parts = 2, .split_size = 2, .grid = "2x2,2x2", .replicas = 2, .halo_d2 = fused};
    const Plan plan = make_plan(graph, options);
    const auto images = std::make_shared<CountedMasks>(31, 26);
    test::on_ranks(plan.ranks(), [&](Communicator& world) {
      Trainer(graph, plan, {.steps = 1, .loader_workers = 0}, images, &world).step();
    });
    EXPECT_EQ(images->pixels, plan.global_batch() * 31 * 26);
    EXPECT_EQ(images->largest, 16 * 13);
  }
}

// What the synthetic masks show can be learnt.
TEST(Unet, TheLossFalls) {
  if (!test::ranks_are_threads()) GTEST_SKIP() << "one rank is enough";
  const Graph graph = builtin_models().build(unet(32, 32));
  const auto images = std::make_shared<SyntheticImages>(
      SyntheticOptions{.classes = 4, .height = 32, .width = 32, .size = 64, .mask_classes = 4});
  Trainer trainer(graph, make_plan(graph, {.batch_size = 8}), {.steps = 100, .optimizer = {.lr = 0.1}}, images);
  const double first = trainer.step().loss;
  double last = first;
  for (int i = 0; i < 99; ++i) last = trainer.step().loss;
  EXPECT_LT(last, 0.5 * first);
}

}  // namespace
}  // namespace tessera::golden
