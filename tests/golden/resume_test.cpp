// A run that stops and goes on from a checkpoint trains like one that never stopped: to the bit on the same plan, to
// 1e-10 on any other. Six steps without interruption against three on a plan, a checkpoint, and three on the next plan.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <mutex>

#include "golden/plans.h"
#include "support/compare.h"
#include "support/scratch.h"
#include "tessera/io/training_checkpoint.h"

namespace tessera::golden {
namespace {

constexpr std::int64_t all_steps = 6, steps_before = 3;

struct Outcome {
  std::vector<double> losses;
  std::map<std::string, at::Tensor> tensors;  ///< of the run, each from the rank that owns it
  std::vector<std::string> owned;             ///< names as the ranks gave them: any that comes twice shows
};

struct Resumed {
  std::string name;
  PlanOptions first, then;
  OptimizerOptions optimizer = {};
  at::ScalarType dtype = at::kDouble;
  bool same_plan = false;
  bool with_dropout = false;
};

std::ostream& operator<<(std::ostream& out, const Resumed& row) { return out << row.name; }

class ResumeTest : public testing::TestWithParam<Resumed> {
 protected:
  /// Trains up to step `end`, from the checkpoint if there is one, and saves what there is then.
  Outcome train(const PlanOptions& division, std::int64_t end, const std::string& from) const {
    const Resumed& row = GetParam();
    const Graph graph = row.with_dropout ? with_dropout(15, 12) : builtin_models().build(resnet_v1(15, 12));
    const Plan plan = make_plan(graph, division);
    const TrainOptions options{.steps = all_steps,
                               .optimizer = row.optimizer,
                               .learning_rate = {.schedule = "cosine", .warmup_steps = 2},
                               .seed = 3,
                               .dtype = row.dtype};
    const RunFacts facts{.model = "net", .dtype = "any", .optimizer = row.optimizer, .seed = 3, .images = 24};
    const auto images = std::make_shared<SyntheticImages>(
        SyntheticOptions{.classes = 5, .height = 15, .width = 12, .size = facts.images, .seed = 5});
    Outcome run;
    std::mutex mutex;
    test::on_ranks(plan.ranks(), [&](Communicator& world) {
      Trainer trainer(graph, plan, options, images, &world);
      if (!from.empty()) {
        const CheckpointReader reader(from);
        require_same_run(reader, facts, plan, graph, [](const std::string& warning) { ADD_FAILURE() << warning; });
        restore(trainer, reader);
      }
      std::vector<double> losses;
      while (trainer.steps_done() < end) losses.push_back(trainer.step().loss);
      CheckpointSaver saver(plan, graph, world.rank().value, {.dir = scratch_.folder(), .run = "run"});
      saver.save(trainer, run_state_at(end, facts, plan, graph));
      saver.finish();
      const std::scoped_lock lock(mutex);
      if (world.rank() == Rank{0}) run.losses = losses;
      const RunTensors owned = trainer.tensors(Trainer::Which::owned);
      for (const auto* kind : {&owned.model, &owned.optimizer})
        for (const auto& [name, tensor] : *kind) {
          run.tensors[name] = tensor.clone();
          run.owned.push_back(name);
        }
    });
    return run;
  }

  test::Scratch scratch_;
};

double largest_difference(const Outcome& run, const Outcome& expected) {
  double largest = 0;
  for (const auto& [name, tensor] : expected.tensors) {
    // A bias before a norm begins at zero, and only rounding moves it: it has no digits of its own.
    const double scale = std::max(tensor.to(at::kDouble).norm().item<double>(), 1e-2);
    largest = std::max(largest, (run.tensors.at(name) - tensor).to(at::kDouble).norm().item<double>() / scale);
  }
  return largest;
}

TEST_P(ResumeTest, GoesOnAsIfNothingHadHappened) {
  const Resumed& row = GetParam();
  const Outcome whole = train(row.first, all_steps, "");
  train(row.first, steps_before, "");
  const Outcome after = train(row.then, all_steps, join_path(scratch_.folder(), "step-000003"));
  ASSERT_EQ(after.losses.size(), static_cast<std::size_t>(all_steps - steps_before));
  for (std::size_t i = 0; i < after.losses.size(); ++i) {
    const double expected = whole.losses[steps_before + i];
    if (row.same_plan)
      EXPECT_EQ(after.losses[i], expected) << "step " << steps_before + i + 1;
    else
      EXPECT_NEAR(after.losses[i], expected, 1e-10 * expected) << "step " << steps_before + i + 1;
  }
  ASSERT_EQ(after.tensors.size(), whole.tensors.size());
  EXPECT_EQ(after.owned.size(), after.tensors.size()) << "a tensor is owned by two ranks";
  if (row.same_plan)
    for (const auto& [name, tensor] : whole.tensors) EXPECT_TRUE(at::equal(after.tensors.at(name), tensor)) << name;
  else
    EXPECT_LT(largest_difference(after, whole), 1e-10);
}

const PlanOptions tiles_and_stages{.batch_size = 8, .parts = 2, .split_size = 2, .num_spatial_parts = "4"};
const PlanOptions one_rank{.batch_size = 8, .parts = 2};
const PlanOptions stages_and_replicas{.batch_size = 4, .split_size = 3, .replicas = 2};
const PlanOptions two_ways{.batch_size = 8, .parts = 2, .split_size = 2, .num_spatial_parts = "2", .local_dp = 2};
const PlanOptions chimera{.batch_size = 8, .parts = 2, .split_size = 2, .schedule = "chimera"};
const OptimizerOptions sgd{.lr = 0.02, .weight_decay = 1e-3}, plain{.lr = 0.02, .momentum = 0},
    adam{.name = "adam", .lr = 1e-3}, adamw{.name = "adamw", .lr = 1e-3, .weight_decay = 0.01},
    averaged{.lr = 0.02, .average = 0.6}, averaged_adam{.name = "adam", .lr = 1e-3, .average = 0.6};

INSTANTIATE_TEST_SUITE_P(
    Golden, ResumeTest,
    testing::Values(
        Resumed{"tiles_and_stages_sgd", tiles_and_stages, tiles_and_stages, sgd, at::kDouble, true},
        Resumed{"tiles_and_stages_adam", tiles_and_stages, tiles_and_stages, adam, at::kDouble, true},
        Resumed{"tiles_and_stages_float32", tiles_and_stages, tiles_and_stages, adamw, at::kFloat, true},
        Resumed{"tiles_and_stages_then_one_rank_sgd", tiles_and_stages, one_rank, sgd},
        Resumed{"tiles_and_stages_then_one_rank_adam", tiles_and_stages, one_rank, adam},
        Resumed{"tiles_and_stages_then_stages_and_replicas_sgd", tiles_and_stages, stages_and_replicas, sgd},
        Resumed{"tiles_and_stages_then_stages_and_replicas_adam", tiles_and_stages, stages_and_replicas, adam},
        Resumed{"stages_and_replicas_then_chimera_adamw", stages_and_replicas, chimera, adamw},
        Resumed{"chimera_then_ways_sgd", chimera, two_ways, sgd},
        Resumed{"ways_then_tiles_without_momentum", two_ways, tiles_and_stages, plain},
        Resumed{"tiles_and_stages_averaged", tiles_and_stages, tiles_and_stages, averaged, at::kDouble, true},
        Resumed{"tiles_and_stages_then_one_rank_averaged", tiles_and_stages, one_rank, averaged_adam},
        Resumed{"one_rank_then_stages_and_replicas_averaged", one_rank, stages_and_replicas, averaged},
        Resumed{"stages_and_replicas_then_chimera_averaged", stages_and_replicas, chimera, averaged_adam},
        Resumed{"chimera_then_ways_averaged", chimera, two_ways, averaged},
        Resumed{.name = "dropout_sgd",
                .first = stages_and_replicas,
                .then = tiles_and_stages,
                .optimizer = sgd,
                .with_dropout = true}),
    [](const auto& row) { return row.param.name; });

// A run with averages that starts from given weights trains these, on all copies.
TEST(Resume, GivenWeightsAreTrainedAndAveraged) {
  const test::Scratch scratch;
  const Graph graph = builtin_models().build(resnet_v1(15, 12));
  const auto images =
      std::make_shared<SyntheticImages>(SyntheticOptions{.classes = 5, .height = 15, .width = 12, .size = 16});
  const Plan one = make_plan(graph, {.batch_size = 4});
  Trainer other(graph, one, {.optimizer = {.lr = 0.1}, .seed = 77, .dtype = at::kDouble}, images);
  other.step();
  CheckpointSaver saver(one, graph, 0, {.dir = scratch.folder(), .run = "run"});
  saver.save(other, run_state_at(1, {.images = 16}, one, graph));
  saver.finish();
  Import all;
  for (const auto& [name, spec] : graph.parameters()) all.loaded.insert(name);

  const Plan tiles = make_plan(graph, {.batch_size = 4, .grid = "2x2"});
  if (tiles.ranks() > test::most_ranks(1000)) GTEST_SKIP() << "needs " << tiles.ranks() << " ranks";
  test::on_ranks(tiles.ranks(), [&](Communicator& world) {
    const TrainOptions options{.optimizer = {.average = 0.9}, .seed = 3, .dtype = at::kDouble};
    Trainer trainer(graph, tiles, options, images, &world);
    load_weights(trainer, TensorStore::open(join_path(scratch.folder(), "step-000001")), all);
    for (const auto& [name, spec] : graph.parameters())
      EXPECT_TRUE(at::equal(trainer.find(name)->value, other.find(name)->value)) << name;
    for (const auto& [name, tensor] : trainer.tensors(Trainer::Which::held).model)
      EXPECT_TRUE(at::equal(tensor, other.find(name)->stored(other.find(name)->value))) << name;
  });
}

// Two checkpoints on a full disk, and one after somebody has made room.
TEST(Resume, AFullDiskIsAWarningOrTheEnd) {
  const test::Scratch scratch;
  const Graph graph = builtin_models().build(resnet_v1(15, 12));
  const Plan plan = make_plan(graph, {.batch_size = 4});
  const RunFacts facts{.images = 16};
  const auto images =
      std::make_shared<SyntheticImages>(SyntheticOptions{.classes = 5, .height = 15, .width = 12, .size = 16});
  const Trainer trainer(graph, plan, {}, images);
  std::vector<std::string> warnings;
  const auto saver = [&](OnSaveError on_error) {
    return CheckpointSaver(
        plan, graph, 0,
        {.dir = scratch.folder(), .run = "run", .on_error = on_error, .warn = [&](const std::string& warning) {
           warnings.push_back(warning);
         }});
  };
  const auto state = [&](std::int64_t step) { return run_state_at(step, facts, plan, graph); };
  CheckpointSaver warns = saver(OnSaveError::warn), stops = saver(OnSaveError::stop);
  {
    const test::FullDisk full(4000);
    warns.save(trainer, state(1));
    warns.save(trainer, state(2));
    EXPECT_THAT(warnings, testing::ElementsAre(testing::HasSubstr("no checkpoint of step 1")));
    EXPECT_THAT(test::error_of([&] { warns.finish(); }), testing::HasSubstr("no checkpoint of step 2"));
    stops.save(trainer, state(3));
    EXPECT_THAT(test::error_of([&] { stops.save(trainer, state(4)); }), testing::HasSubstr("no checkpoint of step 3"));
  }
  EXPECT_THAT(list_folder(scratch.folder()), testing::IsEmpty());
  warns.save(trainer, state(5));
  warns.finish();
  EXPECT_THAT(list_folder(scratch.folder()), testing::ElementsAre("step-000005"));
}

// What would make it another run is refused, with all of it in one message.
TEST(Resume, AnotherRunIsRefused) {
  const test::Scratch scratch;
  const Graph graph = builtin_models().build(resnet_v1(15, 12));
  const Plan plan = make_plan(graph, {.batch_size = 4});
  const RunFacts facts{.model = "resnet_v1", .dtype = "float64", .optimizer = adam, .seed = 3, .images = 16};
  const auto images =
      std::make_shared<SyntheticImages>(SyntheticOptions{.classes = 5, .height = 15, .width = 12, .size = 16});
  Trainer trainer(graph, plan, {.optimizer = adam, .dtype = at::kDouble}, images);
  trainer.step();
  CheckpointSaver saver(plan, graph, 0, {.dir = scratch.folder(), .run = "run"});
  saver.save(trainer, run_state_at(1, facts, plan, graph));
  saver.finish();
  const CheckpointReader reader(join_path(scratch.folder(), "step-000001"));
  const auto problems = [&](const RunFacts& other, const PlanOptions& division, const Graph& network) {
    std::string all;
    try {
      require_same_run(reader, other, make_plan(network, division), network,
                       [&](const std::string& warning) { all += "warning: " + warning + "\n"; });
    } catch (const UsageError& error) {
      all += error.what();
    }
    return all;
  };
  EXPECT_EQ(problems(facts, {.batch_size = 2, .replicas = 2}, graph), "warning: the checkpoint " + reader.folder() +
                                                                          " has images_normalised_together 4, and this "
                                                                          "run 2: it will not train as the "
                                                                          "uninterrupted run would have\n");
  RunFacts other = facts;
  other.optimizer = sgd;
  other.seed = 4;
  EXPECT_THAT(problems(other, {.batch_size = 8}, graph),
              testing::AllOf(testing::HasSubstr("has the state of adam, not of sgd"), testing::HasSubstr("--seed 3"),
                             testing::HasSubstr("4 images per step, and this run has 8")));
  other = facts;
  other.images = 4;
  EXPECT_THAT(problems(other, {.batch_size = 4}, graph), testing::HasSubstr("data set of another size"));
  ModelOptions wider = resnet_v1(15, 12);
  wider.classes = 7;
  EXPECT_THAT(problems(facts, {.batch_size = 4}, builtin_models().build(wider)),
              testing::AllOf(testing::HasSubstr("of another network (resnet_v1)"),
                             testing::HasSubstr("fc.weight is [5, 64] instead of [7, 64]")));
}

}  // namespace
}  // namespace tessera::golden
