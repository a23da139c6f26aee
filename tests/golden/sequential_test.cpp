// Sequential training against torch, per parameter and in float64: whole networks written with torch::nn, and a table
// of settings against autograd's walk over the same graph.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "plans.h"
#include "support/compare.h"
#include "support/device.h"
#include "support/torch_models.h"
#include "tessera/base/error.h"
#include "tessera/data/synthetic.h"
#include "tessera/models/registry.h"
#include "tessera/oracle/reference_run.h"
#include "tessera/oracle/verify.h"

namespace tessera {
namespace {

using test::relative_error;
constexpr double tolerance = 1e-10;
constexpr int steps = 3;

std::shared_ptr<SyntheticImages> images_for(const Graph& graph, int classes) {
  const Shape& image = graph.nodes()[0].shape;
  return std::make_shared<SyntheticImages>(
      SyntheticOptions{.classes = classes,
                       .height = image.height,
                       .width = image.width,
                       .size = 64,
                       .seed = 5,
                       .mask_classes = graph.label_kind() == LabelKind::pixel ? classes : 0});
}

// Three steps of SGD with momentum and weight decay on both sides; loss, gradients, statistics, parameters.
void expect_equal_to(const std::shared_ptr<OracleModel>& theirs, const ModelOptions& model) {
  const Graph graph = builtin_models().build(model);
  const auto images = images_for(graph, static_cast<int>(model.classes));
  const Plan plan = make_plan(graph, {.batch_size = 4});
  const TrainOptions options{.steps = steps,
                             .optimizer = {.lr = 0.02, .momentum = 0.9, .weight_decay = 1e-3},
                             .seed = 5,
                             .dtype = at::kDouble};
  Trainer trainer(graph, plan, options, images);

  theirs->to(at::kDouble);
  std::map<std::string, torch::Tensor> tensors;
  {
    const torch::NoGradGuard guard;
    for (auto& p : theirs->named_parameters()) tensors[p.key()] = p.value();
    for (auto& b : theirs->named_buffers()) tensors[b.key()] = b.value();
    for (auto& [name, tensor] : tensors) tensor.copy_(trainer.find(name)->value);
  }
  ASSERT_EQ(tensors.size(), trainer.parameters()[0]->all().size());
  torch::optim::SGD optimizer(theirs->parameters(), torch::optim::SGDOptions(0.02).momentum(0.9).weight_decay(1e-3));
  LoaderOptions reading{.batch_size = 4, .seed = 5, .dtype = at::kDouble};
  if (images->mask_classes() > 0) reading.mask_dtype = at::kLong;
  Loader batches(images, reading);

  for (int step = 0; step < steps; ++step) {
    SCOPED_TRACE(tessera::concat("step ", step + 1));
    const Batch batch = batches.next();
    optimizer.zero_grad();
    const auto loss = torch::nn::functional::cross_entropy(theirs->forward(batch.images.contiguous()),
                                                           batch.masks.defined() ? batch.masks : batch.labels);
    loss.backward();
    optimizer.step();
    const StepReport report = trainer.step();
    EXPECT_LT(std::abs(report.loss / loss.item<double>() - 1), tolerance);
    for (const auto& p : trainer.parameters()[0]->all()) {
      if (p.trainable) {
        EXPECT_LT(relative_error(p.sum, tensors.at(p.name).grad()), tolerance) << "gradient of " << p.name;
      }
      EXPECT_LT(relative_error(p.value, tensors.at(p.name)), tolerance) << p.name;
    }
  }
}

TEST(Sequential, Resnet18EqualsTorch) {
  expect_equal_to(oracle_resnet18(7), {.name = "resnet18", .image = {3, 97, 82}, .classes = 7});
}

TEST(Sequential, ResnetV2EqualsTorch) {
  expect_equal_to(oracle_resnet_v2(20, 7), {.name = "resnet_v2", .image = {3, 37, 50}, .classes = 7, .depth = 20});
}

TEST(Sequential, AmoebanetEqualsTorch) {
  expect_equal_to(oracle_amoebanet(3, 32, 7),
                  {.name = "amoebanet", .image = {3, 131, 114}, .classes = 7, .num_layers = 3, .num_filters = 32});
}

TEST(Sequential, UnetEqualsTorch) {
  expect_equal_to(oracle_unet(3, 6, 5, false),
                  {.name = "unet", .image = {3, 45, 62}, .classes = 5, .num_layers = 3, .num_filters = 6});
}

TEST(Sequential, BilinearUnetEqualsTorch) {
  expect_equal_to(oracle_unet(2, 6, 5, true), {.name = "unet",
                                               .image = {3, 45, 31},
                                               .classes = 5,
                                               .num_layers = 2,
                                               .num_filters = 6,
                                               .upsampling = "bilinear"});
}

// A row of the table: flags that must not change what is computed, or change it as torch does.
struct Row {
  std::string name;
  ModelOptions model;
  PlanOptions plan{.batch_size = 4};
  OptimizerOptions optimizer{.lr = 0.01};
  LearningRateOptions rate{};
  Recompute recompute = Recompute::norm;
};

// One rank against autograd's walk.
void expect_equal_to_autograd(const Graph& graph, const Row& row) {
  const TrainOptions options{.steps = steps,
                             .optimizer = row.optimizer,
                             .learning_rate = row.rate,
                             .seed = 3,
                             .dtype = at::kDouble,
                             .recompute = row.recompute,
                             .device = test::device()};
  const auto result =
      verify(graph, make_plan(graph, row.plan), options, images_for(graph, static_cast<int>(row.model.classes)));
  EXPECT_GT(result.compared, 0);
  EXPECT_TRUE(result.equal()) << golden::words_for(result);
}

// What a norm without a shift has left has no mean, nor has what a 1x1 convolution makes of it: the second norm's
// running mean is rounding and nothing else, and the deviation beside it says so, without another training.
TEST(Verify, AMeanThatIsZeroIsOnTheScaleOfItsDeviation) {
  Graph graph;
  graph.cell("all");
  Value x = graph.conv(graph.input({3, 12, 11}), {.out = 4, .kernel = 3, .pad = 1}, "conv1");
  x = graph.conv(graph.batch_norm(x, "norm1"), {.out = 6}, "conv2");
  x = graph.relu(graph.batch_norm(x, "norm2"));
  graph.cross_entropy(graph.linear(graph.flatten(graph.global_avg_pool(x)), {.out = 5}, "fc"));
  const Verification result = verify(graph, make_plan(graph, {.batch_size = 4}),
                                     {.steps = 1, .optimizer = {.lr = 0.01}, .seed = 3, .dtype = at::kDouble},
                                     images_for(graph, 5), nullptr, {.trials = 0});
  const auto mean = std::find_if(result.worst.begin(), result.worst.end(),
                                 [](const Difference& d) { return d.what == "statistic norm2.running_mean"; });
  ASSERT_NE(mean, result.worst.end());
  EXPECT_LE(mean->relative, 1e-14);
}

// Of the same coins twelve trials would be one, and a number that they move by chance only a little a fault.
TEST(Verify, EveryTrialThrowsItsOwnCoins) {
  const Graph graph = golden::with_dropout(12, 11);
  const TrainOptions options{.steps = 1, .seed = 3, .dtype = at::kDouble};
  const auto after_a_step = [&](int trial) {
    const auto run =
        make_reference_run(graph, make_plan(graph, {.batch_size = 2}), options, images_for(graph, 5), trial);
    std::map<std::string, at::Tensor> found;
    for (const auto& [name, spec] : graph.parameters())
      if (spec.trainable) found["before " + name] = run->value(name).clone();
    run->step();
    for (const auto& [name, spec] : graph.parameters())
      if (spec.trainable) found["gradient " + name] = run->gradient(name).clone();
    return found;
  };
  const auto one = after_a_step(1), other = after_a_step(2), again = after_a_step(1);
  for (const auto& [name, tensor] : one) {
    EXPECT_TRUE(tensor.equal(again.at(name))) << name;
    const bool has_bits = tensor.abs().sum().item<double>() > 0;
    EXPECT_EQ(tensor.equal(other.at(name)), !has_bits) << name;
  }
}

class Table : public testing::TestWithParam<Row> {};

TEST_P(Table, EqualsAutograd) { expect_equal_to_autograd(builtin_models().build(GetParam().model), GetParam()); }

TEST(TableOfOwnGraphs, DropoutEqualsAutograd) {
  const Graph graph = golden::with_dropout(21, 18);
  for (const Recompute recompute : {Recompute::none, Recompute::norm, Recompute::block})
    expect_equal_to_autograd(graph,
                             {.model = {.classes = 5}, .plan = {.batch_size = 6, .parts = 3}, .recompute = recompute});
}

const ModelOptions small_v1{.name = "resnet_v1", .image = {3, 21, 18}, .classes = 5, .depth = 14};
const ModelOptions small_v2{.name = "resnet_v2", .image = {3, 25, 19}, .classes = 5, .depth = 11};
const ModelOptions small_amoeba{
    .name = "amoebanet", .image = {3, 97, 130}, .classes = 5, .num_layers = 3, .num_filters = 16};

INSTANTIATE_TEST_SUITE_P(
    Sequential, Table,
    testing::Values(
        Row{.name = "micros2", .model = small_v1, .plan = {.batch_size = 6, .parts = 2}},
        Row{.name = "micros4", .model = small_v2, .plan = {.batch_size = 8, .parts = 4}},
        Row{.name = "amoebanet_micros", .model = small_amoeba, .plan = {.batch_size = 4, .parts = 2}},
        Row{.name = "nothing_recomputed_v1", .model = small_v1, .recompute = Recompute::none},
        Row{.name = "nothing_recomputed_v2", .model = small_v2, .recompute = Recompute::none},
        Row{.name = "nothing_recomputed_amoebanet", .model = small_amoeba, .recompute = Recompute::none},
        Row{.name = "blocks_recomputed_v1", .model = small_v1, .recompute = Recompute::block},
        Row{.name = "blocks_recomputed_v2", .model = small_v2, .recompute = Recompute::block},
        Row{.name = "blocks_recomputed_amoebanet", .model = small_amoeba, .recompute = Recompute::block},
        Row{.name = "long_chain", .model = {.name = "resnet_v1", .image = {3, 12, 12}, .classes = 5, .depth = 50}},
        Row{.name = "adam", .model = small_v1, .optimizer = {.name = "adam", .lr = 1e-3, .weight_decay = 0.01}},
        Row{.name = "adamw", .model = small_v1, .optimizer = {.name = "adamw", .lr = 1e-3, .weight_decay = 0.1}},
        Row{.name = "plain_sgd", .model = small_v1, .optimizer = {.lr = 0.05, .momentum = 0}},
        Row{.name = "clipped", .model = small_v1, .optimizer = {.lr = 0.01, .clip_norm = 0.1}},
        Row{.name = "warm_up_and_cosine", .model = small_v2, .rate = {.schedule = "cosine", .warmup_steps = 1}},
        Row{.name = "step_schedule", .model = small_v2, .rate = {.schedule = "step", .step_every = 1}},
        Row{.name = "batch_of_one", .model = small_v1, .plan = {.batch_size = 1}},
        Row{.name = "unet_micros",
            .model = {.name = "unet", .image = {3, 25, 19}, .classes = 5, .num_layers = 2, .num_filters = 4},
            .plan = {.batch_size = 6, .parts = 3}},
        Row{.name = "nothing_recomputed_unet",
            .model = {.name = "unet", .image = {3, 25, 19}, .classes = 5, .num_layers = 3, .num_filters = 4},
            .recompute = Recompute::none},
        Row{.name = "resnet34", .model = {.name = "resnet34", .image = {3, 64, 75}, .classes = 5}}),
    [](const auto& row) { return row.param.name; });

}  // namespace
}  // namespace tessera
