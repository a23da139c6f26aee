#include "tessera/runtime/trainer.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/data/synthetic.h"
#include "tessera/models/registry.h"

namespace tessera {
namespace {

const ModelOptions tiny{.name = "resnet_v1", .image = {3, 16, 16}, .classes = 3, .depth = 8};

std::shared_ptr<SyntheticImages> images(std::int64_t size = 64) {
  return std::make_shared<SyntheticImages>(SyntheticOptions{.classes = 3, .height = 16, .width = 16, .size = size});
}

TEST(Parameters, DependOnNameAndSeedAlone) {
  const Graph small = builtin_models().build(tiny);
  ModelOptions deeper = tiny;
  deeper.depth = 14;
  const Graph large = builtin_models().build(deeper);
  const auto make = [](const Graph& graph, at::ScalarType dtype, std::uint64_t seed) {
    return Parameters(graph, 0, static_cast<int>(graph.nodes().size()), dtype, seed);
  };
  const Parameters a = make(small, at::kDouble, 1), b = make(large, at::kDouble, 1), c = make(small, at::kDouble, 2),
                   d = make(small, at::kFloat, 1);
  EXPECT_TRUE(at::equal(a.at("layer1.0.conv1.weight").value, b.at("layer1.0.conv1.weight").value));
  EXPECT_FALSE(at::equal(a.at("layer1.0.conv1.weight").value, c.at("layer1.0.conv1.weight").value));
  EXPECT_FALSE(at::equal(a.at("layer1.0.conv1.weight").value, a.at("layer1.0.conv2.weight").value));
  EXPECT_TRUE(at::equal(a.at("fc.weight").value.to(at::kFloat), d.at("fc.weight").value));
}

TEST(Parameters, AreViewsOfOneBuffer) {
  const Graph graph = builtin_models().build(tiny);
  const Parameters p(graph, 0, static_cast<int>(graph.nodes().size()), at::kDouble, 1);
  double sum = 0;
  for (const auto& parameter : p.all())
    if (parameter.trainable) sum += parameter.value.sum().item<double>();
  EXPECT_NEAR(p.flat_values().sum().item<double>(), sum, 1e-9);
  p.flat_values().fill_(2);
  EXPECT_EQ(p.at("conv1.weight").value.min().item<double>(), 2);
}

TEST(Parameters, AFlatTensorHasAPartForEachOfThem) {
  const Graph graph = builtin_models().build(tiny);
  const Parameters p(graph, 0, static_cast<int>(graph.nodes().size()), at::kDouble, 1);
  const at::Tensor twice = 2 * p.flat_values();
  for (const auto& parameter : p.all()) {
    if (!parameter.trainable) continue;
    EXPECT_TRUE(at::equal(p.part_like(parameter, twice), 2 * parameter.value)) << parameter.name;
  }
  p.part_like(p.at("fc.bias"), twice).fill_(7);
  EXPECT_EQ((twice == 7).sum().item<std::int64_t>(), 3);
}

TEST(Parameters, OfAStageAreThoseOfTheWhole) {
  const Graph graph = builtin_models().build(tiny);
  const int end = static_cast<int>(graph.nodes().size()), middle = end / 2;
  const Parameters whole(graph, 0, end, at::kDouble, 1), front(graph, 0, middle, at::kDouble, 1),
      rear(graph, middle, end, at::kDouble, 1);
  EXPECT_EQ(whole.all().size(), front.all().size() + rear.all().size());
  for (const auto& p : whole.all()) {
    const Parameter* here = front.find(p.name) ? front.find(p.name) : rear.find(p.name);
    ASSERT_NE(here, nullptr) << p.name;
    EXPECT_TRUE(at::equal(here->value, p.value)) << p.name;
  }
}

TEST(Parameters, OfABfloat16NetworkAreFloat32WithRoundedCopies) {
  const Graph graph = builtin_models().build(tiny);
  const Parameters p(graph, 0, static_cast<int>(graph.nodes().size()), at::kBFloat16, 1);
  EXPECT_EQ(p.flat_values().scalar_type(), at::kFloat);
  EXPECT_EQ(p.flat_gradients().scalar_type(), at::kFloat);
  for (const auto& node : graph.nodes()) {
    const NodeParameters seen = p.of(node);
    for (std::size_t i = 0; i < seen.values.size(); ++i) {
      const bool norm = node.op->kind() == "batch_norm";
      if (node.parameters[i].trainable) {
        EXPECT_EQ(seen.values[i].scalar_type(), norm ? at::kFloat : at::kBFloat16) << node.name;
      }
    }
  }
  // The copies follow when they are told to.
  const Node& conv = graph.nodes()[1];
  p.flat_values().fill_(0.1);
  p.refresh();
  EXPECT_EQ(p.of(conv).values[0].min().item<float>(), at::full({}, 0.1, at::kBFloat16).item<float>());
}

// d^n old + sum of shares: what n micros in a row leave behind.
TEST(Parameters, StatisticsDecayOnceAMicro) {
  const Graph graph = builtin_models().build(tiny);
  const Parameters p(graph, 0, static_cast<int>(graph.nodes().size()), at::kDouble, 1);
  const Parameter& mean = p.at("bn1.running_mean");
  const Parameter& count = p.at("bn1.num_batches_tracked");
  mean.value.fill_(2);
  mean.sum.fill_(0.5);
  count.sum.fill_(3);
  p.update_statistics(3);
  EXPECT_NEAR(mean.value[0].item<double>(), 2 * 0.9 * 0.9 * 0.9 + 0.5, 1e-14);
  EXPECT_EQ(count.value.item<std::int64_t>(), 3);
}

TEST(Trainer, TheLossFalls) {
  const Graph graph = builtin_models().build(tiny);
  Trainer trainer(graph, make_plan(graph, {.batch_size = 16}), {.steps = 40, .optimizer = {.lr = 0.05}}, images());
  const double first = trainer.step().loss;
  double last = first;
  for (int i = 0; i < 39; ++i) last = trainer.step().loss;
  EXPECT_LT(last, 0.5 * first);
}

TEST(Trainer, ARunRepeatsItselfToTheBit) {
  const Graph graph = builtin_models().build(tiny);
  std::vector<at::Tensor> results;
  for (const int workers : {0, 1, 3}) {
    Trainer trainer(graph, make_plan(graph, {.batch_size = 8, .parts = 2}), {.steps = 3, .loader_workers = workers},
                    images());
    for (int i = 0; i < 3; ++i) trainer.step();
    results.push_back(trainer.parameters()[0]->flat_values().clone());
  }
  EXPECT_TRUE(at::equal(results[0], results[1]));
  EXPECT_TRUE(at::equal(results[0], results[2]));
}

TEST(Trainer, EveryStageIsOwnedByTheFirstRankThatHoldsIt) {
  const Graph graph = builtin_models().build(tiny);
  const auto owners = [&](const PlanOptions& options) { return owners_of(make_plan(graph, options)); };
  EXPECT_EQ(owners({.batch_size = 4}), (std::vector<int>{0}));
  EXPECT_EQ(owners({.batch_size = 4, .split_size = 3, .num_spatial_parts = "4"}), (std::vector<int>{0, 4, 5}));
  EXPECT_EQ(owners({.batch_size = 2, .split_size = 3, .replicas = 2}), (std::vector<int>{0, 1, 2}));
  // Up runs through the ranks the other way: the last stage comes by rank 0, too.
  EXPECT_EQ(owners({.batch_size = 4, .parts = 2, .split_size = 3, .schedule = "chimera"}), (std::vector<int>{0, 1, 0}));
}

TEST(Trainer, ALossThatIsNotANumberStopsBeforeTheStepAndNamesIt) {
  const Graph graph = builtin_models().build(tiny);
  Trainer trainer(graph, make_plan(graph, {.batch_size = 8}), {.steps = 3}, images());
  trainer.step();
  trainer.parameters()[0]->at("conv1.weight").value.fill_(std::nan(""));
  const auto before = trainer.parameters()[0]->at("fc.weight").value.clone();
  try {
    trainer.step();
    FAIL() << "training went on";
  } catch (const NumericError& error) {
    EXPECT_NE(std::string(error.what()).find("step 2"), std::string::npos) << error.what();
    EXPECT_EQ(error.code(), ExitCode::numeric);
  }
  EXPECT_TRUE(at::equal(trainer.parameters()[0]->at("fc.weight").value, before));
}

TEST(Trainer, FreesEverythingOfAStep) {
  install_cpu_allocator();
  const Graph graph = builtin_models().build(tiny);
  const auto account = std::make_shared<MemoryAccount>();
  const MemoryScope scope(account);
  Trainer trainer(graph, make_plan(graph, {.batch_size = 8}), {.steps = 4, .loader_workers = 0}, images());
  trainer.step();
  trainer.step();
  const auto after_two = account->live_bytes();
  trainer.step();
  EXPECT_EQ(account->live_bytes(), after_two);
}

TEST(Trainer, RecomputingTakesLessMemory) {
  install_cpu_allocator();
  const Graph graph = builtin_models().build({.name = "resnet_v2", .image = {3, 96, 96}, .classes = 3, .depth = 20});
  const auto peak = [&](Recompute recompute) {
    const auto account = std::make_shared<MemoryAccount>();
    const MemoryScope scope(account);
    const auto source =
        std::make_shared<SyntheticImages>(SyntheticOptions{.classes = 3, .height = 96, .width = 96, .size = 16});
    Trainer trainer(graph, make_plan(graph, {.batch_size = 8}),
                    {.steps = 1, .recompute = recompute, .loader_workers = 0}, source);
    trainer.step();
    return static_cast<double>(account->peak_bytes());
  };
  EXPECT_LT(peak(Recompute::norm), 0.7 * peak(Recompute::none));
}

}  // namespace
}  // namespace tessera
