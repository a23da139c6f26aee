// Every plan says of every image what one device says: running statistics, nothing dropped, each image once, whatever
// the batch leaves over.
#include <ATen/ATen.h>

#include "golden/plans.h"
#include "support/compare.h"
#include "tessera/graph/class_maps.h"
#include "tessera/oracle/autograd.h"
#include "tessera/runtime/evaluator.h"

namespace tessera::golden {
namespace {

struct EvaluationRow {
  std::string name;
  ModelOptions model;
  PlanOptions plan;
  std::int64_t images = 11;  ///< no multiple of any batch here
  std::optional<Graph> graph = std::nullopt;
};

class Evaluated : public testing::TestWithParam<EvaluationRow> {};

const TrainOptions two_steps{
    .steps = 2, .optimizer = {.lr = 0.01}, .seed = 3, .dtype = at::kDouble, .device = test::device()};
const EvaluatorOptions in_double{.dtype = at::kDouble, .device = test::device()};

std::shared_ptr<SyntheticImages> images_of(const Graph& graph, std::int64_t size, std::uint64_t seed) {
  const Shape& image = graph.nodes().front().shape;
  return std::make_shared<SyntheticImages>(
      SyntheticOptions{.classes = 5, .height = image.height, .width = image.width, .size = size, .seed = seed});
}

at::Tensor all_of(const ImageSource& images) {
  const auto [channels, height, width] = images.image_shape();
  at::Tensor all = at::empty({images.size(), channels, height, width}, at::kDouble);
  for (std::int64_t i = 0; i < images.size(); ++i) images.read(i, {0, height}, {0, width}, all.select(0, i));
  return all;
}

/// By torch, after the same two steps on one rank.
at::Tensor expected_logits(const Graph& graph, const Plan& plan, const ImageSource& validation) {
  Trainer trainer(graph, sequential_plan(graph, plan), two_steps, images_of(graph, 64, 5));
  for (int s = 0; s < 2; ++s) trainer.step();
  AutogradOracle oracle(graph, trainer.parameters_of(0), two_steps);
  return oracle.logits(all_of(validation).to(two_steps.device)).cpu().flatten(1);
}

TEST_P(Evaluated, LikeOneDevice) {
  const EvaluationRow& row = GetParam();
  const Graph graph = row.graph ? *row.graph : builtin_models().build(row.model);
  const Plan plan = make_plan(graph, row.plan);
  if (plan.ranks() > test::most_ranks(1000)) GTEST_SKIP() << "needs " << plan.ranks() << " ranks";
  const auto training = images_of(graph, 64, 5), validation = images_of(graph, row.images, 6);
  const at::Tensor logits = expected_logits(graph, plan, *validation);
  const at::Tensor losses = at::log_softmax(logits, 1);
  double loss = 0;
  for (std::int64_t i = 0; i < row.images; ++i) loss -= losses[i][validation->label(i)].item<double>();

  test::on_ranks(plan.ranks(), [&](Communicator& world) {
    use_device(two_steps.device, world.rank().value);
    Trainer trainer(graph, plan, two_steps, training, &world);
    const int stage = Evaluator::stage_of(plan, world.rank().value);
    Evaluator evaluator(graph, plan, trainer.parameters_of(stage), in_double, validation, &world);
    trainer.step();
    evaluator.run();  // in the middle: training goes on as if nothing had been
    trainer.step();
    std::vector<at::Tensor> seen;
    const Evaluation result = evaluator.run([&](const Predictions& p) {
      EXPECT_EQ(p.first, seen.empty() ? 0 : at::cat(seen).size(0));
      seen.push_back(p.logits);
    });
    EXPECT_LT(test::relative_error(at::cat(seen), logits), 1e-10);
    EXPECT_EQ(result.images, row.images);
    EXPECT_EQ(result.confusion.total(), row.images);
    EXPECT_NEAR(result.loss.value(), loss / static_cast<double>(row.images), 1e-10 * loss);
  });
}

std::vector<EvaluationRow> rows() {
  std::vector<EvaluationRow> rows;
  const auto add = [&](EvaluationRow row) { rows.push_back(std::move(row)); };
  const PlanOptions four{.batch_size = 4};
  add({"one_rank", resnet_v1(33, 29), four});
  add({"one_rank_micros", resnet_v2(21, 18), {.batch_size = 6, .parts = 3}});
  add({"one_rank_fewer_images_than_a_batch", resnet_v1(17, 18), four, 3});
  add({"one_rank_batches_without_rest", resnet_v1(17, 18), four, 8});
  add({"one_rank_dropout", {}, four, 11, with_dropout(18, 21)});
  add({"grid_2x2", resnet_v2(34, 31), {.batch_size = 4, .grid = "2x2"}});
  add({"turns_2x3", resnet_v2(34, 31), {.batch_size = 4, .turns = "2x3"}});
  add({"turns_on_tiles_two_stages",
       resnet_v2(34, 31),
       {.batch_size = 4, .split_size = 2, .grid = "1x2", .turns = "2x2,1x2"}});
  add({"grid_2x2_dropout", {}, {.batch_size = 4, .grid = "2x2"}, 11, with_dropout(18, 21)});
  add({"grid_3x2_fused", resnet_v1(33, 37), {.batch_size = 4, .grid = "3x2", .fused_layers = 2, .halo_d2 = true}});
  add({"grid_1x2_amoebanet", amoebanet(97, 65), {.batch_size = 2, .grid = "1x2"}});
  add({"regrid", resnet_v2(33, 29), {.batch_size = 4, .split_size = 3, .num_spatial_parts = "4,2"}});
  for (const char* schedule : {"gpipe", "1f1b", "zero-bubble"})
    add({concat("stages_3_", std::string(schedule) == "zero-bubble" ? "zero_bubble" : schedule),
         resnet_v2(17, 18),
         {.batch_size = 8, .parts = 4, .split_size = 3, .schedule = schedule}});
  add({"stages_4_long_skips", {}, {.batch_size = 4, .parts = 2, .split_size = 4}, 11, long_skips(20, 17)});
  add({"stages_2_behind_2x2", resnet_v1(33, 29), {.batch_size = 4, .parts = 2, .split_size = 2, .grid = "2x2"}});
  add({"local_dp", resnet_v1(33, 29), {.batch_size = 4, .split_size = 2, .num_spatial_parts = "2", .local_dp = 2}});
  add({"replicas_2", resnet_v1(17, 18), {.batch_size = 3, .replicas = 2}});
  add({"replicas_2_norm_global",
       resnet_v1(17, 18),
       {.batch_size = 4, .parts = 2, .replicas = 2, .batch_norm = "global"}});
  add({"replicas_2_of_2_stages", resnet_v1(17, 18), {.batch_size = 4, .parts = 2, .split_size = 2, .replicas = 2}});
  add({"mast_2", resnet_v1(17, 18), {.batch_size = 4, .split_size = 2, .schedule = "gems-mast"}});
  add({"master_3", resnet_v2(17, 18), {.batch_size = 4, .split_size = 3, .schedule = "gems-master", .times = 2}, 35});
  add({"chimera_4", resnet_v2(17, 18), {.batch_size = 4, .parts = 4, .split_size = 4, .schedule = "chimera"}});
  add({"chimera_2x1",
       resnet_v1(33, 29),
       {.batch_size = 4, .parts = 2, .split_size = 2, .grid = "2x1", .schedule = "chimera"}});
  return rows;
}

INSTANTIATE_TEST_SUITE_P(Plans, Evaluated, testing::ValuesIn(rows()), [](const auto& row) { return row.param.name; });

struct MasksRow {
  std::string name;
  PlanOptions plan;
};

class EvaluatedMasks : public testing::TestWithParam<MasksRow> {};

TEST_P(EvaluatedMasks, LikeOneDevice) {
  const Graph graph = builtin_models().build(unet(33, 38));
  const Plan plan = make_plan(graph, GetParam().plan);
  if (plan.ranks() > test::most_ranks(1000)) GTEST_SKIP() << "needs " << plan.ranks() << " ranks";
  const int classes = static_cast<int>(graph.shape(graph.logits()).channels);
  const auto images = [&](std::int64_t size, std::uint64_t seed) {
    return std::make_shared<SyntheticImages>(SyntheticOptions{
        .classes = classes, .height = 33, .width = 38, .size = size, .seed = seed, .mask_classes = classes});
  };
  const auto training = images(64, 5), validation = images(7, 6);
  Trainer sequential(graph, sequential_plan(graph, plan), two_steps, training);
  for (int s = 0; s < 2; ++s) sequential.step();
  AutogradOracle oracle(graph, sequential.parameters_of(0), two_steps);
  const at::Tensor logits = oracle.logits(all_of(*validation).to(two_steps.device)).cpu(), predicted = logits.argmax(1);
  Confusion confusion(classes);
  at::Tensor masks = at::empty({7, 33, 38}, at::kLong);
  for (std::int64_t i = 0; i < 7; ++i) validation->read_mask(i, {0, 33}, {0, 38}, masks[i]);
  for (std::int64_t i = 0; i < masks.numel(); ++i)
    confusion.add(masks.data_ptr<std::int64_t>()[i], predicted.contiguous().data_ptr<std::int64_t>()[i]);
  const double loss = -at::log_softmax(logits, 1).gather(1, masks.unsqueeze(1)).mean().item<double>();

  test::on_ranks(plan.ranks(), [&](Communicator& world) {
    use_device(two_steps.device, world.rank().value);
    Trainer trainer(graph, plan, two_steps, training, &world);
    const int stage = Evaluator::stage_of(plan, world.rank().value);
    Evaluator evaluator(graph, plan, trainer.parameters_of(stage), in_double, validation, &world);
    for (int s = 0; s < 2; ++s) trainer.step();
    std::int64_t taken = 0;
    const Evaluation result = evaluator.run_masks([&](const PredictedMask& mask) {
      EXPECT_EQ(mask.image, taken++);
      EXPECT_TRUE(at::equal(mask.classes.to(at::kLong), predicted[mask.image]));
    });
    EXPECT_EQ(taken, world.rank() == Rank{0} ? 7 : 0);
    EXPECT_EQ(result.labelled, 7 * 33 * 38);
    EXPECT_EQ(result.confusion.counts(), confusion.counts());
    EXPECT_NEAR(result.loss.value(), loss, 1e-10 * loss);
    EXPECT_EQ(evaluator.run().confusion.counts(), confusion.counts());
  });
}

INSTANTIATE_TEST_SUITE_P(Plans, EvaluatedMasks,
                         testing::Values(MasksRow{"one_rank", {.batch_size = 4, .parts = 2}},
                                         MasksRow{"turns_3x2", {.batch_size = 2, .turns = "3x2"}},
                                         MasksRow{"turns_on_2x1", {.batch_size = 2, .grid = "2x1", .turns = "1x2"}},
                                         MasksRow{"grid_2x2", {.batch_size = 2, .grid = "2x2"}},
                                         MasksRow{"stages_2_of_2x1",
                                                  {.batch_size = 2, .split_size = 2, .grid = "2x1,2x1"}},
                                         MasksRow{"replicas_2_of_1x2", {.batch_size = 2, .grid = "1x2", .replicas = 2}},
                                         MasksRow{"mast", {.batch_size = 2, .split_size = 2, .schedule = "gems-mast"}}),
                         [](const auto& row) { return row.param.name; });

// A network that ends in a mean and a linear layer; or, to compare with, in the linear layer at every position.
Graph small_network(bool maps) {
  Graph g;
  g.cell("first");
  Value x =
      g.relu(g.batch_norm(g.conv(g.input({3, 37, 30}), {.out = 6, .kernel = 3, .stride = 2, .pad = 1}, "a"), "n"));
  g.cell("second");
  x = g.relu(g.conv(x, {.out = 7, .kernel = 3, .pad = 1, .bias = true}, "b"));
  g.cell("head");
  if (maps)
    g.add_node(std::make_shared<CrossEntropy>(LabelKind::pixel), {g.conv(x, {.out = 5, .bias = true}, "fc")}, "loss");
  else
    g.cross_entropy(g.linear(g.dropout(g.flatten(g.global_avg_pool(x)), 0.5), {.out = 5}, "fc"));
  return g;
}

class EvaluatedMaps : public testing::TestWithParam<MasksRow> {};

TEST_P(EvaluatedMaps, LikeOneDevice) {
  const Graph direct = small_network(true);
  const ClassMaps network = with_class_maps(small_network(false));
  const Plan plan = make_plan(network.graph, GetParam().plan);
  if (plan.ranks() > test::most_ranks(1000)) GTEST_SKIP() << "needs " << plan.ranks() << " ranks";
  const auto images = images_of(direct, 7, 6);
  const auto options = at::TensorOptions().dtype(at::kDouble).device(test::device());
  const int nodes = static_cast<int>(direct.nodes().size());
  // Parameters are drawn by their names, so these are the same ones.
  AutogradOracle oracle(direct, Parameters(direct, 0, nodes, options, 9), two_steps);
  const at::Tensor planes = oracle.logits(all_of(*images).to(test::device())).cpu();
  ASSERT_EQ(planes.sizes(), (std::vector<std::int64_t>{7, 5, 19, 15}));

  test::on_ranks(plan.ranks(), [&](Communicator& world) {
    use_device(test::device(), world.rank().value);
    const Stage& stage = plan.stages[static_cast<std::size_t>(Evaluator::stage_of(plan, world.rank().value))];
    const Parameters parameters(network.graph, stage.first_node, stage.end_node, options, 9);
    EvaluatorOptions with_maps = in_double;
    with_maps.maps = network.maps;
    Evaluator evaluator(network.graph, plan, parameters, with_maps, images, &world);
    std::int64_t taken = 0;
    const auto take = [&](const Predictions& p) {
      EXPECT_LT(test::relative_error(p.logits, planes.mean({2, 3}).narrow(0, p.first, p.logits.size(0))), 1e-10);
    };
    evaluator.run(take, [&](const PredictedMaps& maps) {
      EXPECT_EQ(maps.image, taken++);
      EXPECT_TRUE(at::allclose(maps.planes.to(at::kDouble), planes[maps.image], 1e-6, 1e-6));
    });
    EXPECT_EQ(taken, world.rank() == Rank{0} ? 7 : 0);
  });
}

INSTANTIATE_TEST_SUITE_P(
    Plans, EvaluatedMaps,
    testing::Values(MasksRow{"one_rank", {.batch_size = 4, .parts = 2}},
                    MasksRow{"turns_2x3", {.batch_size = 4, .parts = 2, .turns = "2x3"}},
                    MasksRow{"turns_on_1x2", {.batch_size = 2, .grid = "1x2", .turns = "2x2"}},
                    MasksRow{"grid_2x2", {.batch_size = 2, .grid = "2x2"}},
                    MasksRow{"one_behind_2x2", {.batch_size = 4, .parts = 2, .split_size = 2, .grid = "2x2"}},
                    MasksRow{"ways_behind_2x1",
                             {.batch_size = 4, .split_size = 2, .num_spatial_parts = "2", .local_dp = 2}},
                    MasksRow{"stages_3_of_2x1", {.batch_size = 2, .split_size = 3, .grid = "2x1,2x1,2x1"}},
                    MasksRow{"replicas_2_of_1x2", {.batch_size = 2, .grid = "1x2", .replicas = 2}},
                    MasksRow{"mast", {.batch_size = 2, .split_size = 2, .schedule = "gems-mast"}}),
    [](const auto& row) { return row.param.name; });

TEST(ClassMaps, AreOfNetworksThatEndInAMeanAndLinearLayers) {
  const auto image = [](Graph& g) { return g.relu(g.conv(g.input({3, 8, 8}), {.out = 4, .kernel = 3}, "a")); };
  const auto refused = [](const Graph& g, const std::string& words) {
    try {
      with_class_maps(g);
      ADD_FAILURE() << "not refused: " << words;
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
  };
  Graph planes, deep, flat, pooled;
  planes.pixel_cross_entropy(planes.conv(planes.input({3, 8, 8}), {.out = 2}, "a"));
  refused(planes, "networks that label images");
  deep.cross_entropy(deep.linear(deep.relu(deep.flatten(deep.global_avg_pool(image(deep)))), {.out = 2}, "fc"));
  refused(deep, "(relu) comes before the logits");
  flat.cross_entropy(flat.linear(flat.flatten(image(flat)), {.out = 2}, "fc"));
  refused(flat, "(flatten) comes before the logits");
  // Without any layer behind the mean, as SqueezeNet.
  pooled.cross_entropy(pooled.global_avg_pool(image(pooled)));
  const ClassMaps maps = with_class_maps(pooled);
  EXPECT_EQ(maps.graph.shape(maps.maps), (Shape{4, 6, 6}));
  EXPECT_EQ(maps.graph.parameters().size(), 1U);
}

// What is kept for backward would be most of the memory.
TEST(Evaluation, HoldsLessThanHalfOfTraining) {
  const Graph graph = builtin_models().build(resnet_v2(64, 64, 29));
  const Plan plan = make_plan(graph, {.batch_size = 8});
  install_cpu_allocator();
  const auto peak = [&](auto&& work) {
    const auto account = std::make_shared<MemoryAccount>();
    const MemoryScope scope(account);
    work();
    return static_cast<double>(account->peak_bytes());
  };
  const auto images = images_of(graph, 8, 5);
  // In float32: in float64 torch's convolutions take more memory for themselves than the values that they make.
  const double training = peak([&] { Trainer(graph, plan, {.steps = 1, .loader_workers = 0}, images).step(); });
  const double evaluation = peak([&] {
    const Parameters parameters(graph, 0, static_cast<int>(graph.nodes().size()), at::kFloat, 1);
    Evaluator(graph, plan, parameters, {.loader_workers = 0}, images).run();
  });
  EXPECT_LT(evaluation, 0.5 * training);
}

// Labels may be missing: what is not known does not count, and is predicted all the same.
class Unlabelled : public SyntheticImages {
 public:
  using SyntheticImages::SyntheticImages;
  std::int64_t label(std::int64_t index) const override { return index % 3 == 0 ? -1 : SyntheticImages::label(index); }
};

TEST(Evaluation, LeavesOutWhatHasNoLabel) {
  const Graph graph = builtin_models().build(resnet_v1(17, 18));
  const Plan plan = make_plan(graph, {.batch_size = 4});
  const auto images =
      std::make_shared<Unlabelled>(SyntheticOptions{.classes = 5, .height = 17, .width = 18, .size = 10});
  const Parameters parameters(graph, 0, static_cast<int>(graph.nodes().size()), at::kDouble, 1);
  std::int64_t predicted = 0;
  double losses = 0;
  const Evaluation result =
      Evaluator(graph, plan, parameters, {.dtype = at::kDouble}, images).run([&](const Predictions& p) {
        predicted += p.logits.size(0);
        losses += p.losses.sum().item<double>();
      });
  EXPECT_EQ(predicted, 10);
  EXPECT_EQ(result.images, 10);
  EXPECT_EQ(result.labelled, 6);
  EXPECT_EQ(result.confusion.total(), 6);
  EXPECT_NEAR(result.loss.value(), losses / 6, 1e-12);
}

}  // namespace
}  // namespace tessera::golden
