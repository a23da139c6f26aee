// Every operation trains like one device on every kind of plan, and on one rank like torch's autograd. A new operation
// is a line of the table.
#include "golden/plans.h"

namespace tessera::golden {
namespace {

struct Case {
  std::string name;
  std::function<Value(Graph&, Value)> apply;
};

Activation activation(ActivationKind kind) {
  return {kind, kind == ActivationKind::leaky_relu ? 0.1 : kind == ActivationKind::elu ? 0.7 : 0};
}

// conv - operation - conv - operation, in cells of their own, with a way around the second one.
Graph network(const Case& c) {
  Graph g;
  g.cell("a");
  Value x = conv_norm_relu(g, g.input({3, 19, 15}), {.out = 8, .kernel = 3, .pad = 1}, "a");
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
  add("batch_norm_frozen", [](Graph& g, Value x) {
    return g.relu(g.batch_norm(x, numbered(g, "bn"), {.frozen = true}));
  });
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
  add("instance_norm_affine", [](Graph& g, Value x) {
    return g.relu(g.instance_norm(x, numbered(g, "in"), {.affine = true}));
  });
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
    Value s = g.activate(g.conv(g.global_avg_pool(x), {.out = 4, .bias = true}, numbered(g, "down")),
                         {ActivationKind::silu});
    s = g.activate(g.conv(s, {.out = 8, .bias = true}, numbered(g, "up")), {ActivationKind::sigmoid});
    return g.multiply(g.batch_norm(x, numbered(g, "bn")), s);
  });
  add("attention_gate", [](Graph& g, Value x) {
    return g.multiply(x, g.activate(g.conv(x, {.out = 1, .bias = true}, numbered(g, "gate")), {ActivationKind::sigmoid}));
  });
  add("one_number_for_a_sample", [](Graph& g, Value x) {
    return g.relu(g.add(x, g.conv(g.global_avg_pool(x), {.out = 1}, numbered(g, "one"))));
  });
  add("norm_of_one_position", [](Graph& g, Value x) {
    return g.add(x, g.relu(g.batch_norm(g.conv(g.global_avg_pool(x), {.out = 8}, numbered(g, "c")), numbered(g, "bn"))));
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
          {"gems", {.batch_size = 4, .parts = 2, .split_size = 2, .schedule = "gems-mast"}}};
}

class Operations : public testing::TestWithParam<std::tuple<Case, Named>> {};

TEST_P(Operations, TrainLikeOneDevice) {
  const auto& [c, plan] = GetParam();
  expect_like_one_device({.name = {}, .model = {}, .plan = plan.plan, .recompute = plan.recompute, .graph = network(c)});
}

INSTANTIATE_TEST_SUITE_P(All, Operations, testing::Combine(testing::ValuesIn(cases()), testing::ValuesIn(plans())),
                         [](const auto& row) {
                           return std::get<0>(row.param).name + "__" + std::get<1>(row.param).name;
                         });

}  // namespace
}  // namespace tessera::golden
