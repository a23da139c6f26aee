// What a golden table needs: a network, a plan, and the check that the plan trains like one device.
#pragma once

#include <gtest/gtest.h>

#include "support/device.h"
#include "support/ranks.h"
#include "tessera/data/synthetic.h"
#include "tessera/models/registry.h"
#include "tessera/oracle/verify.h"
#include "tessera/runtime/device.h"

namespace tessera::golden {

struct Row {
  std::string name;
  ModelOptions model;
  PlanOptions plan{.batch_size = 4};
  Recompute recompute = Recompute::norm;
  double clip_norm = 0;
  std::optional<Graph> graph = std::nullopt;  ///< a network of the test's own, in place of `model`
  StoreKind store = StoreKind::device;
};

inline ModelOptions resnet_v1(std::int64_t height, std::int64_t width) {
  return {.name = "resnet_v1", .image = {3, height, width}, .classes = 5, .depth = 8};
}
inline ModelOptions resnet_v2(std::int64_t height, std::int64_t width, int depth = 11) {
  return {.name = "resnet_v2", .image = {3, height, width}, .classes = 5, .depth = depth};
}
inline ModelOptions resnet18(std::int64_t height, std::int64_t width) {
  return {.name = "resnet18", .image = {3, height, width}, .classes = 5};
}
inline ModelOptions resnet50(std::int64_t height, std::int64_t width) {
  return {.name = "resnet50", .image = {3, height, width}, .classes = 5};
}
inline ModelOptions amoebanet(std::int64_t height, std::int64_t width) {
  return {.name = "amoebanet", .image = {3, height, width}, .classes = 5, .num_layers = 3, .num_filters = 16};
}

/// Two levels of four channels at first: small enough for a table.
inline ModelOptions unet(std::int64_t height, std::int64_t width, std::string upsampling = "transposed",
                         std::int64_t levels = 2) {
  return {.name = "unet",
          .image = {3, height, width},
          .classes = 4,
          .num_layers = levels,
          .num_filters = 4,
          .upsampling = std::move(upsampling)};
}

inline Value conv_norm_relu(Graph& g, Value x, const ConvOptions& options, const std::string& name) {
  return g.relu(g.batch_norm(g.conv(x, options, name), name + ".bn"));
}

/// Five cells of one convolution each. The third reads the image again, and the fourth what the first made: values that
/// pass stages which do nothing with them.
inline Graph long_skips(std::int64_t height, std::int64_t width) {
  Graph g;
  g.cell("a");
  const Value image = g.input({3, height, width});
  const Value a = conv_norm_relu(g, image, {.out = 6, .kernel = 3, .pad = 1}, "a");
  g.cell("b");
  const Value b = conv_norm_relu(g, a, {.out = 5, .kernel = {1, 5}, .pad = {0, 2}}, "b");
  g.cell("c");
  const Value c = conv_norm_relu(g, g.concat({b, image}), {.out = 6, .kernel = 3, .stride = 2, .pad = 1}, "c");
  g.cell("d");
  const Value pooled = g.avg_pool(a, {.kernel = 3, .stride = 2, .pad = 1, .count_include_pad = false});
  const Value d = g.relu(g.add(g.batch_norm(g.conv(c, {.out = 6, .kernel = 3, .pad = 1}, "d"), "d.bn"), pooled));
  g.cell("head");
  g.cross_entropy(g.linear(g.flatten(g.global_avg_pool(g.concat({d, c}))), {.out = 5}, "fc"));
  return g;
}

/// Drops elements of the plane, between convolutions, and of the features.
inline Graph with_dropout(std::int64_t height, std::int64_t width) {
  Graph g;
  g.cell("a");
  Value x = conv_norm_relu(g, g.input({3, height, width}), {.out = 6, .kernel = 3, .pad = 1}, "a");
  x = g.dropout(x, 0.3);
  g.cell("b");
  x = g.dropout(conv_norm_relu(g, x, {.out = 8, .kernel = 3, .stride = 2, .pad = 1}, "b"), 0.2);
  g.cell("c");
  x = conv_norm_relu(g, x, {.out = 8, .kernel = 3, .pad = 1}, "c");
  g.cell("head");
  g.cross_entropy(g.linear(g.dropout(g.flatten(g.global_avg_pool(x)), 0.5), {.out = 5}, "fc"));
  return g;
}

/// Small images, but so many parameters that the gradients are summed in several buckets.
inline Graph wide() {
  Graph g;
  g.cell("front");
  Value x = conv_norm_relu(g, g.input({3, 5, 4}), {.out = 256, .kernel = 3, .pad = 1}, "a");
  x = conv_norm_relu(g, x, {.out = 256, .kernel = 3, .pad = 1}, "b");
  g.cell("rear");
  x = conv_norm_relu(g, x, {.out = 256, .kernel = 3, .pad = 1}, "c");
  x = g.conv(x, {.out = 256, .kernel = 3, .pad = 1}, "d");
  g.cross_entropy(g.linear(g.flatten(g.global_avg_pool(x)), {.out = 5}, "fc"));
  return g;
}

/// What a test says of tensors that are not equal.
inline std::string words_for(const Verification& result) {
  const Difference& d = result.worst.front();
  return concat(d.what, " at step ", d.step + 1, ": ", d.relative, " where rounding makes ", d.rounding, "; ",
                result.hidden, " of ", result.worst.size(), " tensors are hidden by rounding");
}

/// Three steps in float64 against sequential training: loss, gradients, statistics, parameters, each by the rule of
/// verify(), and all copies of a parameter alike to the bit. Under mpirun a plan that needs more ranks than there are
/// is skipped. Images are synthetic unless given.
inline void expect_like_one_device(const Row& row, std::shared_ptr<const ImageSource> images = nullptr) {
  const Graph graph = row.graph ? *row.graph : builtin_models().build(row.model);
  const Plan plan = make_plan(graph, row.plan);
  if (plan.ranks() > test::most_ranks(1000)) GTEST_SKIP() << "needs " << plan.ranks() << " ranks";
  const TrainOptions options{.steps = 3,
                             .optimizer = {.lr = 0.01, .clip_norm = row.clip_norm},
                             .seed = 3,
                             .dtype = at::kDouble,
                             .recompute = row.recompute,
                             .store = row.store,
                             .scratch = row.store == StoreKind::file ? testing::TempDir() : "",
                             .device = test::device()};
  const Shape& image = graph.nodes().front().shape;
  const auto classes = static_cast<int>(graph.shape(graph.logits()).channels);
  if (!images)
    images = std::make_shared<SyntheticImages>(
        SyntheticOptions{.classes = classes,
                         .height = image.height,
                         .width = image.width,
                         .size = 64,
                         .seed = 5,
                         .mask_classes = graph.label_kind() == LabelKind::pixel ? classes : 0});
  Verification result;
  test::on_ranks(plan.ranks(), [&](Communicator& world) {
    use_device(options.device, world.rank().value);
    const Verification mine = verify(graph, plan, options, images, &world);
    if (world.rank() == Rank{0}) result = mine;
  });
  if (!test::ranks_are_threads() && test::MpiEnvironment::get().world()->rank() != Rank{0}) return;
  EXPECT_GT(result.compared, 0);
  EXPECT_TRUE(result.equal()) << words_for(result);
}

}  // namespace tessera::golden
