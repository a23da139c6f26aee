// A rank with turns reads each tile by its own box, when its turn begins; all others as a whole.
#include "tessera/runtime/rank_images.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "support/recorded_images.h"
#include "tessera/data/synthetic.h"
#include "tessera/models/registry.h"
#include "tessera/runtime/evaluator.h"
#include "tessera/runtime/memory.h"
#include "tessera/runtime/trainer.h"

namespace tessera::test {
namespace {

constexpr std::int64_t height = 33, width = 29;
using Reads = std::vector<RecordedImages::Read>;

std::shared_ptr<RecordedImages> recorded(std::int64_t size = 12, int mask_classes = 0) {
  return std::make_shared<RecordedImages>(std::make_shared<SyntheticImages>(
      SyntheticOptions{.classes = 3, .height = height, .width = width, .size = size, .mask_classes = mask_classes}));
}

const Graph& network() {
  static const Graph graph =
      builtin_models().build({.name = "resnet_v1", .image = {3, height, width}, .classes = 3, .depth = 8});
  return graph;
}

/// The tiles of a plan of one rank, with their margins, in the order of their turns.
std::vector<Box> tiles_of(const Plan& plan) { return make_layout(network(), plan).at(0, 0).held; }

/// A micro after the other, in each tile after tile, in each the images.
Reads tile_by_tile(const Plan& plan, const std::vector<std::int64_t>& images, std::int64_t epoch) {
  Reads out;
  for (std::size_t first = 0; first < images.size(); first += static_cast<std::size_t>(plan.micro_size()))
    for (const Box& tile : tiles_of(plan))
      for (std::size_t i = first; i < first + static_cast<std::size_t>(plan.micro_size()); ++i)
        out.push_back({images[i], epoch, tile.height(), tile.width()});
  return out;
}

std::vector<std::int64_t> images_of(const Reads& reads) {
  std::vector<std::int64_t> out;
  for (const auto& read : reads)
    if (std::find(out.begin(), out.end(), read.image) == out.end()) out.push_back(read.image);
  return out;
}

TEST(RankImages, OfATileAreReadByItsOwnBox) {
  const Plan plan = make_plan(network(), {.batch_size = 4, .parts = 2, .turns = "3x2"});
  const auto source = recorded();
  Trainer trainer(network(), plan, {.steps = 4, .dtype = at::kDouble, .loader_workers = 0}, source);
  std::vector<std::int64_t> epoch;
  for (int step = 0; step < 3; ++step) {
    trainer.step();
    const Reads reads = source->take_reads();
    EXPECT_EQ(reads, tile_by_tile(plan, images_of(reads), 0));
    EXPECT_EQ(reads.size(), 4u * 6u);
    for (const std::int64_t image : images_of(reads)) epoch.push_back(image);
  }
  std::sort(epoch.begin(), epoch.end());
  EXPECT_EQ(epoch, (std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}));
}

TEST(RankImages, LieInOnePlaceWhenThatIsAskedFor) {
  const Plan plan = make_plan(network(), {.batch_size = 4});
  const Layout layout = make_layout(network(), plan);
  const Parameters parameters(network(), 0, static_cast<int>(network().nodes().size()), at::kDouble, 1);
  const Executor executor(network(), parameters,
                          Wiring{.plan = plan, .layout = layout, .place = {Direction::down, 0, 0}}, Recompute::norm);
  Meter meter;
  const auto make = [&] {
    return RankImages(recorded(), {.batch_size = 4, .dtype = at::kDouble}, executor, {{0, 4}}, meter);
  };
  RankImages moving = make(), fixed = make();
  void* place = nullptr;
  for (int step = 0; step < 5; ++step) {
    moving.next_batch();
    fixed.next_batch();
    if (step == 1) {
      fixed.keep_in_place();
      place = fixed.batch().images.data_ptr();
    }
    EXPECT_TRUE(at::equal(fixed.batch().images, moving.batch().images));
    EXPECT_TRUE(at::equal(fixed.batch().labels, moving.batch().labels));
    EXPECT_EQ(fixed.batch().images.strides(), moving.batch().images.strides());
    EXPECT_TRUE(step == 0 || fixed.batch().images.data_ptr() == place);
  }
}

TEST(RankImages, OfOneTileAreReadAsAWhole) {
  const Plan plan = make_plan(network(), {.batch_size = 4, .parts = 2});
  const auto source = recorded();
  Trainer trainer(network(), plan, {.steps = 1, .dtype = at::kDouble, .loader_workers = 0}, source);
  trainer.step();
  const Reads reads = source->take_reads();
  EXPECT_EQ(reads.size(), 4u);
  for (const auto& read : reads) EXPECT_EQ(read.rows, (Interval{0, height}));
}

TEST(RankImages, OfARunThatGoesOnAreThoseOfTheRunItself) {
  const Plan plan = make_plan(network(), {.batch_size = 4, .parts = 2, .turns = "2x2"});
  const auto source = recorded();
  const TrainOptions options{.steps = 5, .seed = 7, .dtype = at::kDouble, .loader_workers = 0};
  Trainer trainer(network(), plan, options, source);
  for (int step = 0; step < 4; ++step) trainer.step();
  source->take_reads();
  trainer.step();
  const Reads expected = source->take_reads();
  Trainer other(network(), plan, options, source);
  other.step();
  other.start_at(4);
  source->take_reads();
  other.step();
  EXPECT_EQ(source->take_reads(), expected);
}

TEST(RankImages, OfAnEvaluationAreReadTileByTileToo) {
  const Plan plan = make_plan(network(), {.batch_size = 4, .parts = 2, .turns = "2x3"});
  const auto source = recorded(/*size=*/7);
  const Parameters parameters(network(), 0, static_cast<int>(network().nodes().size()), at::kDouble, 1);
  Evaluator evaluator(network(), plan, parameters, {.dtype = at::kDouble, .loader_workers = 0}, source);
  for (int run = 0; run < 2; ++run) {
    EXPECT_EQ(evaluator.run().images, 7);
    Reads expected = tile_by_tile(plan, {0, 1, 2, 3, 4, 5, 6, 7}, 0);
    std::erase_if(expected, [](const auto& read) { return read.image == 7; });  // a blank
    EXPECT_EQ(source->take_reads(), expected);
  }
}

/// What looks at tiles of one rank, fed by hand.
struct OneRank {
  explicit OneRank(const Graph& g, const PlanOptions& options)
      : graph(g),
        plan(make_plan(graph, options)),
        layout(make_layout(graph, plan)),
        parameters(graph, 0, static_cast<int>(graph.nodes().size()), at::kDouble, 1),
        executor(graph, parameters, {plan, layout, plan.places_of(0)[0]}, Recompute::norm) {}
  const Graph& graph;
  const Plan plan;
  const Layout layout;
  const Parameters parameters;
  Executor executor;
};

TEST(RankImages, OfABatchThatFailedAreLeftBehind) {
  const OneRank rank(network(), {.batch_size = 4, .parts = 2, .turns = "2x2"});
  const auto boxes = rank.executor.image_boxes();
  const auto source = recorded();
  source->broken_pixel = {1, boxes[1].height().end - 1, boxes[1].width().end - 1};
  for (const int workers : {0, 2}) {
    Meter meter;
    LoaderOptions options{.batch_size = 4, .shuffle = false, .dtype = at::kDouble};
    Loader whole(recorded(), options);
    options.workers = workers;
    RankImages images(source, options, rank.executor, {{0, 2}, {2, 4}}, meter);
    images.next_batch();
    images.images_of(0)(boxes[0]);
    EXPECT_THROW(images.images_of(0)(boxes[1]), UsageError);
    for (const std::int64_t step : {1, 3}) {
      images.next_batch();
      if (step == 3) images.next_batch();  // nobody looks at batch 2
      whole.start_at(step);
      const Batch expected = whole.next();
      EXPECT_TRUE(at::equal(images.batch().labels, expected.labels));
      EXPECT_TRUE(
          at::equal(images.images_of(0)(boxes[0]), expected.images.slice(0, 0, 2)
                                                       .slice(2, boxes[0].height().begin, boxes[0].height().end)
                                                       .slice(3, boxes[0].width().begin, boxes[0].width().end)));
    }
    EXPECT_GT(meter.take()[static_cast<std::size_t>(Part::data)], 0);
  }
}

TEST(RankImages, AreAskedForInTheOrderInWhichTheyAreRead) {
  OneRank rank(network(), {.batch_size = 4, .parts = 2, .turns = "2x2"});
  Meter meter;
  RankImages images(recorded(), {.batch_size = 4, .dtype = at::kDouble}, rank.executor, {{0, 2}, {2, 4}}, meter);
  images.next_batch();
  EXPECT_THROW(images.images_of(1)(rank.executor.image_boxes()[0]), Error) << "the second micro before the first";
  EXPECT_THROW(images.images_of(0)(rank.executor.image_boxes()[1]), Error) << "the second tile before the first";
  EXPECT_NO_THROW(images.images_of(0)(rank.executor.image_boxes()[0]));
}

// The convolution takes the images as they are, without a frame around them.
TEST(RankImages, OfATileAreGoneBeforeThoseOfTheNextAreAskedFor) {
  Graph graph;
  const Value a = graph.conv(graph.input({3, height, width}), {.out = 4, .kernel = 1}, "a");
  graph.cross_entropy(graph.linear(graph.flatten(graph.global_avg_pool(graph.relu(a))), {.out = 3}, "fc"));
  OneRank rank(graph, {.batch_size = 2, .turns = "3x2"});
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  std::vector<c10::weak_intrusive_ptr<c10::TensorImpl>> given;
  std::size_t most = 0;
  MicroState state;
  rank.executor.forward(state, 0,
                        [&](const Box& box) {
                          std::size_t alive = 0;
                          for (const auto& tensor : given) alive += tensor.expired() ? 0 : 1;
                          most = std::max(most, alive);
                          at::Tensor images = at::zeros({2, 3, box.height().size(), box.width().size()}, at::kDouble);
                          given.emplace_back(images.getIntrusivePtr());
                          return images;
                        },
                        {.labels = at::zeros({2}, at::kLong), .options = at::kDouble, .evaluating = true});
  EXPECT_EQ(given.size(), 6u);
  EXPECT_EQ(most, 0u);
  rank.executor.take_answer(state);
}

TEST(RankImages, OfAnEvaluationTakeTheMemoryOfAFewTiles) {
  install_cpu_allocator();
  constexpr std::int64_t side = 256;
  Graph graph;
  const Value a = graph.conv(graph.input({3, side, side}), {.out = 4, .kernel = 8, .stride = 8}, "a");
  graph.cross_entropy(graph.linear(graph.flatten(graph.global_avg_pool(graph.relu(a))), {.out = 3}, "fc"));
  const Parameters parameters(graph, 0, static_cast<int>(graph.nodes().size()), at::kDouble, 1);
  const auto source =
      std::make_shared<SyntheticImages>(SyntheticOptions{.classes = 3, .height = side, .width = side, .size = 3});
  const auto peak = [&](const PlanOptions& plan) {
    const auto account = std::make_shared<MemoryAccount>();
    const MemoryScope scope(account);
    Evaluator evaluator(graph, make_plan(graph, plan), parameters, {.dtype = at::kDouble, .loader_workers = 0}, source);
    evaluator.run();
    return account->peak_bytes();
  };
  constexpr std::int64_t image_bytes = 3 * side * side * 8;
  EXPECT_GT(peak({.batch_size = 1}), image_bytes);
  EXPECT_LT(peak({.batch_size = 1, .turns = "4x4"}), image_bytes / 4);
}

TEST(RankImages, MasksAreTakenTileByTile) {
  install_cpu_allocator();
  constexpr std::int64_t side = 128, classes = 24;
  Graph graph;
  graph.pixel_cross_entropy(graph.conv(graph.input({3, side, side}), {.out = classes}, "logits"));
  const Parameters parameters(graph, 0, static_cast<int>(graph.nodes().size()), at::kDouble, 1);
  const auto source = std::make_shared<SyntheticImages>(
      SyntheticOptions{.classes = classes, .height = side, .width = side, .size = 2, .mask_classes = classes});
  at::Tensor masks[2];
  const auto peak = [&](const PlanOptions& plan, at::Tensor& mask) {
    const auto account = std::make_shared<MemoryAccount>();
    const MemoryScope scope(account);
    Evaluator evaluator(graph, make_plan(graph, plan), parameters, {.dtype = at::kDouble, .loader_workers = 0}, source);
    evaluator.run_masks([&](const PredictedMask& m) { mask = m.classes; });
    return account->peak_bytes();
  };
  constexpr std::int64_t logits_bytes = classes * side * side * 8;
  EXPECT_GT(peak({.batch_size = 1}, masks[0]), logits_bytes);
  EXPECT_LT(peak({.batch_size = 1, .turns = "4x4"}, masks[1]), logits_bytes / 3);
  EXPECT_TRUE(at::equal(masks[0], masks[1]));
}

}  // namespace
}  // namespace tessera::test
