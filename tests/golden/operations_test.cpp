// Every operation trains like one device on every kind of plan, and on one rank like torch's autograd. A new operation
// is a line of the table.
#include "golden/plans.h"

namespace tessera::golden {
namespace {

struct Case {
  std::string name;
  std::function<Value(Graph&, Value)> apply;
};

Activation activation(ActivationKind kind) { return {kind, kind == ActivationKind::leaky_relu ? 0.1 : 0.7}; }

// conv - operation - conv - operation, in cells of their own, with a way around the second one.
Graph network(const Case& c) {
  Graph g;
  g.cell("a");
  Value x = conv_norm_relu(g, g.input({3, 29, 27}), {.out = 8, .kernel = 3, .pad = 1}, "a");
  g.cell("b");
  x = c.apply(g, x);
  g.cell("c");
  x = g.conv(x, {.out = 8, .kernel = 3, .stride = 2, .pad = 1}, "c");
  g.cell("d");
  const Value y = c.apply(g, x);
  g.cell("head");
  x = g.shape(x) == g.shape(y) ? g.add(x, y) : y;
  x = g.shape(x).positions() == 1 ? x : g.global_avg_pool(x);
  g.cross_entropy(g.linear(g.flatten(x), {.out = 5}, "fc"));
  return g;
}

std::string numbered(const Graph& g, const std::string& name) { return concat(name, g.nodes().size()); }

std::vector<Case> cases() {
  std::vector<Case> all;
  const auto add = [&](std::string name, std::function<Value(Graph&, Value)> apply) {
    all.push_back({std::move(name), std::move(apply)});
  };
#define TESSERA_ROW(kind, value, derivative, by_value)                                           \
  add(#kind, [](Graph& g, Value x) { return g.activate(x, activation(ActivationKind::kind)); }); \
  add(#kind "_after_norm", [](Graph& g, Value x) {                                               \
    return g.activate(g.batch_norm(x, numbered(g, "bn")), activation(ActivationKind::kind));     \
  });
  TESSERA_ACTIVATIONS(TESSERA_ROW)
#undef TESSERA_ROW
  add("activation_of_a_sum", [](Graph& g, Value x) {
    const Value y = g.batch_norm(g.conv(x, {.out = 8}, numbered(g, "conv")), numbered(g, "bn"));
    return g.activate(g.add(y, x), {ActivationKind::silu});
  });
  add("batch_norm", [](Graph& g, Value x) { return g.batch_norm(x, numbered(g, "bn")); });
  add("batch_norm_not_affine", [](Graph& g, Value x) { return g.batch_norm(x, numbered(g, "bn"), {.affine = false}); });
  add("batch_norm_frozen",
      [](Graph& g, Value x) { return g.relu(g.batch_norm(x, numbered(g, "bn"), {.frozen = true})); });
  add("group_norm", [](Graph& g, Value x) { return g.relu(g.group_norm(x, numbered(g, "gn"), {.groups = 4})); });
  add("group_norm_of_one_group", [](Graph& g, Value x) { return g.group_norm(x, numbered(g, "gn"), {.groups = 1}); });
  add("group_norm_not_affine", [](Graph& g, Value x) {
    return g.activate(g.group_norm(x, numbered(g, "gn"), {.groups = 2, .affine = false}), {ActivationKind::gelu});
  });
  add("group_norm_and_a_sum", [](Graph& g, Value x) {
    return g.relu(g.add(g.group_norm(g.conv(x, {.out = 8}, numbered(g, "conv")), numbered(g, "gn"), {.groups = 2}), x));
  });
  add("two_kinds_of_norm_in_a_sum", [](Graph& g, Value x) {
    return g.relu(g.add(g.group_norm(x, numbered(g, "gn"), {.groups = 2}), g.batch_norm(x, numbered(g, "bn"))));
  });
  add("instance_norm", [](Graph& g, Value x) { return g.instance_norm(x, numbered(g, "in")); });
  add("instance_norm_affine",
      [](Graph& g, Value x) { return g.relu(g.instance_norm(x, numbered(g, "in"), {.affine = true})); });
  add("layer_norm", [](Graph& g, Value x) { return g.layer_norm(x, numbered(g, "ln")); });
  add("layer_norm_not_affine", [](Graph& g, Value x) {
    return g.activate(g.layer_norm(x, numbered(g, "ln"), {.affine = false}), {ActivationKind::gelu});
  });
  add("scale", [](Graph& g, Value x) { return g.add(g.scale(x, numbered(g, "scale"), {.start = 0.3}), x); });
  add("multiply", [](Graph& g, Value x) {
    return g.multiply(x, g.activate(g.conv(x, {.out = 8}, numbered(g, "conv")), {ActivationKind::sigmoid}));
  });
  add("multiply_of_norms", [](Graph& g, Value x) {
    const Value y = g.batch_norm(g.conv(x, {.out = 8}, numbered(g, "conv")), numbered(g, "bn"));
    return g.activate(g.multiply(y, g.batch_norm(x, numbered(g, "bn"))), {ActivationKind::tanh});
  });
  add("squeeze_and_excite", [](Graph& g, Value x) {
    Value s =
        g.activate(g.conv(g.global_avg_pool(x), {.out = 4, .bias = true}, numbered(g, "down")), {ActivationKind::silu});
    s = g.activate(g.conv(s, {.out = 8, .bias = true}, numbered(g, "up")), {ActivationKind::sigmoid});
    return g.multiply(g.batch_norm(x, numbered(g, "bn")), s);
  });
  add("attention_gate", [](Graph& g, Value x) {
    return g.multiply(x,
                      g.activate(g.conv(x, {.out = 1, .bias = true}, numbered(g, "gate")), {ActivationKind::sigmoid}));
  });
  add("sum_with_one_channel", [](Graph& g, Value x) {
    return g.relu(g.add(x, g.conv(x, {.out = 1, .kernel = 3, .pad = 1}, numbered(g, "map"))));
  });
  add("one_number_for_a_sample",
      [](Graph& g, Value x) { return g.relu(g.add(x, g.conv(g.global_avg_pool(x), {.out = 1}, numbered(g, "one")))); });
  add("norm_of_one_position", [](Graph& g, Value x) {
    return g.add(x,
                 g.relu(g.batch_norm(g.conv(g.global_avg_pool(x), {.out = 8}, numbered(g, "c")), numbered(g, "bn"))));
  });
  add("prelu", [](Graph& g, Value x) { return g.prelu(x, numbered(g, "prelu")); });
  add("prelu_of_one", [](Graph& g, Value x) { return g.prelu(x, numbered(g, "prelu"), false); });
  add("slices_of_channels", [](Graph& g, Value x) {
    return g.concat({g.slice_channels(x, 5, 3), g.relu(g.slice_channels(x, 0, 5))});
  });
  add("channel_shuffle", [](Graph& g, Value x) { return g.relu(g.channel_shuffle(x, 4)); });
  add("pad_and_crop", [](Graph& g, Value x) {
    return g.pad(g.pad(x, {.before = {2, 1}, .after = Pair{0, 3}}), {.before = {-1, 0}, .after = Pair{1, -2}});
  });
  add("conv_padded_by_reflection", [](Graph& g, Value x) {
    return g.conv(x, {.out = 8, .kernel = 5, .pad = 2, .pad_mode = PadMode::reflect}, numbered(g, "conv"));
  });
  add("conv_padded_by_replication", [](Graph& g, Value x) {
    return g.conv(x, {.out = 8, .kernel = {3, 4}, .pad = {1, 2}, .pad_mode = PadMode::replicate}, numbered(g, "conv"));
  });
  add("conv_padded_in_a_circle", [](Graph& g, Value x) {
    return g.conv(x, {.out = 8, .kernel = 3, .stride = 2, .pad = 1, .pad_mode = PadMode::circular},
                  numbered(g, "conv"));
  });
  add("resize_nearest_to_a_size", [](Graph& g, Value x) { return g.resize(x, {.size = Pair{13, 22}}); });
  add("resize_nearest_by_a_factor", [](Graph& g, Value x) { return g.resize(x, {.factor = 1.7}); });
  add("resize_bilinear_to_a_size", [](Graph& g, Value x) {
    return g.resize(x, {.mode = ResizeMode::bilinear, .size = Pair{23, 9}});
  });
  add("resize_bilinear_by_a_factor",
      [](Graph& g, Value x) { return g.resize(x, {.mode = ResizeMode::bilinear, .factor = 1.3}); });
  add("resize_bilinear_with_aligned_corners", [](Graph& g, Value x) {
    return g.resize(x, {.mode = ResizeMode::bilinear, .size = Pair{29, 31}, .align_corners = true});
  });
  add("adaptive_avg_pool", [](Graph& g, Value x) { return g.adaptive_pool(x, {.size = {7, 5}}); });
  add("adaptive_max_pool", [](Graph& g, Value x) { return g.adaptive_pool(x, {.size = {5, 7}, .max = true}); });
  add("adaptive_pool_to_more", [](Graph& g, Value x) { return g.adaptive_pool(x, {.size = {21, 17}}); });
  add("max_pool_hanging_over",
      [](Graph& g, Value x) { return g.max_pool(x, {.kernel = 3, .stride = 2, .pad = 1, .ceil_mode = true}); });
  add("avg_pool_hanging_over", [](Graph& g, Value x) {
    return g.avg_pool(x, {.kernel = {3, 2}, .stride = 2, .ceil_mode = true});
  });
  add("avg_pool_hanging_over_without_padding", [](Graph& g, Value x) {
    return g.avg_pool(x, {.kernel = 3, .stride = 2, .pad = 1, .count_include_pad = false, .ceil_mode = true});
  });
  add("conv_transpose_of_blocks", [](Graph& g, Value x) {
    return g.conv_transpose(x, {.out = 8, .scale = {2, 1}}, numbered(g, "up"));
  });
  add("conv_transpose_overlapping", [](Graph& g, Value x) {
    return g.conv_transpose(x, {.out = 8, .scale = 2, .kernel = Pair{4, 3}, .pad = 1, .output_pad = {0, 1}},
                            numbered(g, "up"));
  });
  add("conv_transpose_of_groups", [](Graph& g, Value x) {
    return g.conv_transpose(
        x, {.out = 8, .scale = {1, 3}, .bias = false, .kernel = Pair{3, 2}, .dilation = {2, 1}, .groups = 4},
        numbered(g, "up"));
  });
  add("conv_of_groups", [](Graph& g, Value x) {
    return g.conv(x,
                  {.out = 8, .kernel = {4, 3}, .pad = {1, 2}, .pad_end = Pair{2, 0}, .dilation = {1, 2}, .groups = 4},
                  numbered(g, "conv"));
  });
  add("depthwise_conv", [](Graph& g, Value x) {
    return g.conv(x, {.out = 8, .kernel = 5, .pad = 2, .groups = 8, .bias = true}, numbered(g, "conv"));
  });
  add("depthwise_conv_of_stride", [](Graph& g, Value x) {
    return g.conv(x, {.out = 8, .kernel = 3, .stride = 2, .pad = 1, .groups = 8}, numbered(g, "conv"));
  });
  add("dropout_of_channels", [](Graph& g, Value x) { return g.dropout(x, 0.3, DropoutOf::channels); });
  add("dropout_of_samples", [](Graph& g, Value x) {
    return g.add(x, g.dropout(g.conv(x, {.out = 8}, numbered(g, "c")), 0.4, DropoutOf::samples));
  });
  return all;
}

struct Named {
  std::string name;
  PlanOptions plan;
  Recompute recompute = Recompute::norm;
};

std::vector<Named> plans() {
  return {{"one_rank", {.batch_size = 4, .parts = 2}},
          {"tiles", {.batch_size = 4, .grid = "2x2"}},
          {"fused", {.batch_size = 4, .grid = "2x2", .fused_layers = 2, .halo_d2 = true}},
          {"stages", {.batch_size = 4, .parts = 2, .split_size = 2, .grid = "2x1"}},
          {"blocks", {.batch_size = 4, .parts = 2, .split_size = 2, .schedule = "zero-bubble"}, Recompute::block},
          {"turns", {.batch_size = 4, .parts = 2, .split_size = 2, .turns = "2x2,1x2"}, {Recompute::block, 2}},
          {"gems", {.batch_size = 4, .parts = 2, .split_size = 2, .schedule = "gems-mast"}}};
}

class Operations : public testing::TestWithParam<std::tuple<Case, Named>> {};

TEST_P(Operations, TrainLikeOneDevice) {
  const auto& [c, plan] = GetParam();
  expect_like_one_device(
      {.name = {}, .model = {}, .plan = plan.plan, .recompute = plan.recompute, .graph = network(c)});
}

INSTANTIATE_TEST_SUITE_P(All, Operations, testing::Combine(testing::ValuesIn(cases()), testing::ValuesIn(plans())),
                         [](const auto& row) {
                           return std::get<0>(row.param).name + "__" + std::get<1>(row.param).name;
                         });

struct LossCase {
  std::string name;
  LabelKind labels;
  LossOptions options;
};

void PrintTo(const LossCase& c, std::ostream* out) { *out << c.name; }

Graph network_of(const LossCase& c) {
  Graph g;
  g.cell("a");
  Value x = conv_norm_relu(g, g.input({3, 29, 27}), {.out = 8, .kernel = 3, .pad = 1}, "a");
  g.cell("b");
  std::vector<Value> side;
  if (c.options.auxiliary > 0) side.push_back(g.conv(x, {.out = 5, .kernel = 1}, "side"));
  x = g.conv(x, {.out = 5, .kernel = 3, .pad = 1}, "b");
  g.cell("head");
  if (c.labels == LabelKind::image) {
    for (Value& v : side) v = g.flatten(g.global_avg_pool(v));
    g.cross_entropy(g.flatten(g.global_avg_pool(x)), side);
  } else {
    g.pixel_cross_entropy(x, side);
  }
  g.set_loss(c.options);
  return g;
}

std::vector<LossCase> losses() {
  std::vector<LossCase> all;
  for (const auto& [labels, of] : {std::pair{LabelKind::image, "images"}, {LabelKind::pixel, "pixels"}}) {
    all.push_back({concat("smoothing_of_", of), labels, {.smoothing = 0.1}});
    all.push_back({concat("weights_of_", of), labels, {.class_weights = {1, 4, 0.5, 0, 2}}});
    all.push_back({concat("auxiliary_of_", of), labels, {.auxiliary = 0.4}});
    all.push_back(
        {concat("all_of_", of), labels, {.smoothing = 0.1, .class_weights = {1, 2, 3, 4, 5}, .auxiliary = 2}});
    all.push_back({concat("both_of_", of), labels, {.smoothing = 0.3, .class_weights = {3, 1, 0.25, 1, 2}}});
  }
  all.push_back({"binary", LabelKind::image, {.binary = true}});
  all.push_back({"binary_and_all",
                 LabelKind::image,
                 {.smoothing = 0.1, .class_weights = {1, 2, 3, 0, 5}, .auxiliary = 0.4, .binary = true}});
  all.push_back({"dice", LabelKind::pixel, {.dice = 1}});
  all.push_back({"dice_and_all",
                 LabelKind::pixel,
                 {.smoothing = 0.1, .class_weights = {1, 2, 3, 0, 5}, .auxiliary = 0.4, .dice = 2.5}});
  return all;
}

std::vector<Named> plans_of_losses() {
  auto all = plans();
  all.push_back({"replicas", {.batch_size = 4, .grid = "1x2", .replicas = 2}});
  all.push_back({"micros_of_one_sample", {.batch_size = 2, .parts = 2, .grid = "1x2"}});
  return all;
}

class Losses : public testing::TestWithParam<std::tuple<LossCase, Named>> {};

TEST_P(Losses, TrainLikeOneDevice) {
  const auto& [c, plan] = GetParam();
  expect_like_one_device(
      {.name = {}, .model = {}, .plan = plan.plan, .recompute = plan.recompute, .graph = network_of(c)});
}

INSTANTIATE_TEST_SUITE_P(All, Losses,
                         testing::Combine(testing::ValuesIn(losses()), testing::ValuesIn(plans_of_losses())),
                         [](const auto& row) {
                           return std::get<0>(row.param).name + "__" + std::get<1>(row.param).name;
                         });

}  // namespace
}  // namespace tessera::golden
