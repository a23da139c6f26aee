// Steps that are played from a recording are the steps that they would have been.
#include "tessera/runtime/recording.h"

#include <gtest/gtest.h>

#include "support/device.h"
#include "tessera/data/synthetic.h"
#include "tessera/graph/activations.h"
#include "tessera/runtime/trainer.h"

namespace tessera::test {
namespace {

// What could differ from step to step: images, labels, what is dropped, statistics.
Graph with_all_that_differs() {
  Graph graph;
  Value x = graph.conv(graph.input({3, 24, 20}), {.out = 8, .kernel = 3, .pad = 1}, "conv1");
  x = graph.dropout(graph.relu(graph.batch_norm(x, "bn1")), 0.2);
  Value branch = graph.conv(x, {.out = 8, .kernel = 3, .pad = 1, .groups = 8}, "conv2");
  branch = graph.dropout(graph.activate(graph.group_norm(branch, "gn", {.groups = 2}), {ActivationKind::silu}), 0.3,
                         DropoutOf::samples);
  x = graph.dropout(graph.add(x, branch), 0.3, DropoutOf::channels);
  x = graph.max_pool(x, {.kernel = 2, .stride = 2});
  graph.cross_entropy(graph.linear(graph.flatten(graph.global_avg_pool(x)), {.out = 3}, "fc"));
  return graph;
}

struct Trained {
  std::vector<double> losses;
  std::vector<at::Tensor> tensors;
  bool replayed = false;
};

// What the labels of a step count differs.
Graph with_masks() {
  Graph graph;
  const Value x =
      graph.relu(graph.batch_norm(graph.conv(graph.input({3, 24, 20}), {.out = 8, .kernel = 3, .pad = 1}, "a"), "b"));
  graph.pixel_cross_entropy(graph.conv(x, {.out = 3, .kernel = 1}, "c"));
  graph.set_loss({.class_weights = {1, 2, 0.5}, .dice = 0.4});
  return graph;
}

Trained train(const Graph& graph, TrainOptions::Replay replay, std::int64_t parts, at::ScalarType dtype = at::kDouble) {
  const auto images = std::make_shared<SyntheticImages>(
      SyntheticOptions{.classes = 3, .height = 24, .width = 20, .size = 64, .mask_classes = 3});
  Trainer trainer(graph, make_plan(graph, {.batch_size = 8, .parts = parts}),
                  {.steps = 9,
                   .optimizer = {.lr = 0.05, .momentum = 0.9},
                   .seed = 3,
                   .dtype = dtype,
                   .replay = replay,
                   .device = device()},
                  images);
  Trained run;
  for (int step = 0; step < 9; ++step) run.losses.push_back(trainer.step().loss);
  run.replayed = trainer.replays();
  for (const auto& [name, tensor] : trainer.tensors(Trainer::Which::owned).model)
    run.tensors.push_back(tensor.cpu().clone());
  return run;
}

TEST(Recording, TrainsLikeStepsThatAreNotRecorded) {
  if (device() != at::kCUDA) GTEST_SKIP() << "for GPUs: set TESSERA_TEST_DEVICE=cuda";
  for (const int which : {0, 1, 2}) {
    const Graph graph = which < 2 ? with_all_that_differs() : with_masks();
    const int parts = which == 1 ? 4 : 1;
    const Trained plain = train(graph, TrainOptions::Replay::never, parts),
                  played = train(graph, TrainOptions::Replay::soon, parts);
    EXPECT_FALSE(plain.replayed);
    EXPECT_TRUE(played.replayed);
    for (std::size_t i = 0; i < plain.losses.size(); ++i)
      EXPECT_NEAR(played.losses[i], plain.losses[i], 1e-12 * plain.losses[i]) << "step " << i + 1;
    ASSERT_EQ(plain.tensors.size(), played.tensors.size());
    for (std::size_t i = 0; i < plain.tensors.size(); ++i) {
      const at::Tensor a = plain.tensors[i].to(at::kDouble), b = played.tensors[i].to(at::kDouble);
      EXPECT_LE((a - b).norm().item<double>(), 1e-11 * a.norm().item<double>()) << "tensor " << i;
    }
  }
}

// Their weights are rounded anew in every step. Libraries may add in another order from run to run.
TEST(Recording, TakesTheWeightsOfTheStepWhereTheyAreRounded) {
  if (device() != at::kCUDA) GTEST_SKIP() << "for GPUs: set TESSERA_TEST_DEVICE=cuda";
  const Graph graph = with_masks();
  const Trained plain = train(graph, TrainOptions::Replay::never, 1, at::kBFloat16),
                played = train(graph, TrainOptions::Replay::soon, 1, at::kBFloat16);
  EXPECT_TRUE(played.replayed);
  EXPECT_GT(plain.losses.front() - plain.losses.back(), 0.05 * plain.losses.front());
  for (std::size_t i = 0; i < plain.losses.size(); ++i)
    EXPECT_NEAR(played.losses[i], plain.losses[i], 5e-3 * plain.losses[i]) << "step " << i + 1;
}

// Tables of what is resized are uploaded once, so that later steps need not wait.
TEST(Recording, IsMadeOfNetworksThatResize) {
  if (device() != at::kCUDA) GTEST_SKIP() << "for GPUs: set TESSERA_TEST_DEVICE=cuda";
  Graph graph;
  Value x = graph.conv(graph.input({3, 24, 20}), {.out = 8, .kernel = 3, .pad = 1, .pad_mode = PadMode::reflect}, "a");
  x = graph.resize(graph.relu(x), {.mode = ResizeMode::bilinear, .factor = {}, .size = Pair{17, 31}});
  x = graph.adaptive_pool(x, {.size = {3, 2}});
  graph.cross_entropy(graph.linear(graph.flatten(x), {.out = 3}, "fc"));
  EXPECT_TRUE(train(graph, TrainOptions::Replay::soon, 1).replayed);
}

TEST(Recording, OfWhatLooksAtANumberIsNone) {
  if (device() != at::kCUDA) GTEST_SKIP() << "for GPUs: set TESSERA_TEST_DEVICE=cuda";
  const at::Tensor x = at::ones({4}, doubles());
  EXPECT_EQ(record_kernels([&] { static_cast<void>(x.sum().item<double>()); }), nullptr);
  EXPECT_NO_THROW(at::rand({4}, doubles()));  // torch has forgotten about it
  const auto recording = record_kernels([&] { x.mul_(2); });
  ASSERT_NE(recording, nullptr);
  EXPECT_EQ(x.sum().item<double>(), 4);
  recording->play();
  recording->play();
  EXPECT_EQ(x.sum().item<double>(), 16);
}

}  // namespace
}  // namespace tessera::test
