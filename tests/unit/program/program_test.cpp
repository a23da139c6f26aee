#include "tessera/program/program.h"

#include <gtest/gtest.h>

#include "tessera/models/registry.h"

namespace tessera {
namespace {

std::vector<std::string> step_names(const Program& program) {
  std::vector<std::string> names;
  for (const auto& step : program.steps) names.push_back(step.name);
  return names;
}

struct Built {
  explicit Built(Graph g, Recompute recompute = Recompute::norm)
      : graph(std::move(g)), program(graph, {0, static_cast<int>(graph.nodes().size())}, recompute) {}
  Keep keep(Value v) const { return program.keep[static_cast<std::size_t>(v.id)]; }
  const Step& last() const { return program.steps.back(); }
  Graph graph;
  Program program;
};

TEST(Program, NormAddAndReluAreOneStep) {
  Graph g;
  const Value x = g.input({3, 8, 8});
  const Value a = g.batch_norm(g.conv(x, {.out = 4}, "a"), "na"), b = g.batch_norm(g.conv(x, {.out = 4}, "b"), "nb");
  const Value y = g.relu(g.add(a, b));
  const Built built(g);
  EXPECT_EQ(step_names(built.program), (std::vector<std::string>{"a", "b", built.graph.node(y).name}));
  EXPECT_EQ(built.program.producer[static_cast<std::size_t>(a.id)], -1);
}

TEST(Program, AValueThatOthersReadStaysOutsideAStep) {
  Graph g;
  const Value x = g.input({3, 8, 8});
  const Value n = g.batch_norm(g.conv(x, {.out = 3}, "a"), "n");
  g.add(g.relu(n), n);
  const Built built(g);
  EXPECT_EQ(built.program.steps.size(), 4u);  // conv, norm, relu, add
  EXPECT_NE(built.program.producer[static_cast<std::size_t>(n.id)], -1);
}

TEST(Program, ANormalisedValueIsMadeAgainFromWhatIsStored) {
  Graph g;
  const Value x = g.input({3, 8, 8});
  const Value c = g.conv(x, {.out = 4}, "c");
  const Value z = g.relu(g.batch_norm(c, "n"));
  g.conv(z, {.out = 4}, "d");
  EXPECT_EQ(Built(g).keep(c), Keep::stored);
  EXPECT_EQ(Built(g).keep(z), Keep::recomputed);
  EXPECT_EQ(Built(g, Recompute::none).keep(z), Keep::stored);
}

TEST(Program, ASumOfWhatNobodyStoresIsStoredItself) {
  Graph g;
  const Value x = g.input({3, 8, 8});
  const Value a = g.conv(x, {.out = 4}, "a"), b = g.conv(x, {.out = 4}, "b");
  const Value sum = g.add(a, b);
  g.conv(sum, {.out = 4}, "c");
  const Built built(g);
  EXPECT_EQ(built.keep(sum), Keep::stored);
  EXPECT_EQ(built.keep(a), Keep::dropped);
}

TEST(Program, SiluSeesItsInputAgainNotItsOutput) {
  Graph g;
  const Value c = g.conv(g.input({3, 8, 8}), {.out = 4}, "c");
  const Value s = g.activate(c, {ActivationKind::silu});
  for (const auto recompute : {Recompute::none, Recompute::norm, Recompute::block}) {
    const Built built(g, recompute);
    EXPECT_EQ(built.last().needs_input, std::vector{true});
    EXPECT_FALSE(built.last().needs_output);
    EXPECT_FALSE(built.last().pointwise->by_output);
    EXPECT_NE(built.keep(c), Keep::dropped);
    EXPECT_EQ(built.keep(s), Keep::dropped) << "nobody looks at it";
  }
}

TEST(Program, AnActivationWhoseValueTellsItsSlopeIsReadFromItsOutput) {
  for (const auto kind : {ActivationKind::relu, ActivationKind::sigmoid, ActivationKind::tanh}) {
    Graph g;
    const Value c = g.conv(g.input({3, 8, 8}), {.out = 4}, "c");
    const Value y = g.activate(c, {kind});
    const Built built(g, Recompute::none);
    EXPECT_EQ(built.last().needs_input, std::vector{false}) << to_string(kind);
    EXPECT_TRUE(built.last().needs_output) << to_string(kind);
    EXPECT_EQ(built.keep(c), Keep::dropped) << to_string(kind);
    EXPECT_EQ(built.keep(y), Keep::stored) << to_string(kind);
  }
}

TEST(Program, AProductSeesBothFactorsAgain) {
  Graph g;
  const Value x = g.input({3, 8, 8});
  const Value a = g.conv(x, {.out = 4}, "a"), b = g.conv(x, {.out = 4}, "b");
  g.relu(g.multiply(a, b));
  for (const auto recompute : {Recompute::none, Recompute::norm}) {
    const Built built(g, recompute);
    EXPECT_EQ(step_names(built.program).size(), 3u) << "the ReLU is part of the product";
    EXPECT_EQ(built.last().pointwise->combine, Combine::product);
    EXPECT_EQ(built.last().needs_input, (std::vector{true, true}));
    EXPECT_FALSE(built.last().needs_output);
    EXPECT_EQ(built.keep(a), Keep::stored);
    EXPECT_EQ(built.keep(b), Keep::stored);
  }
}

TEST(Program, AGateOfOnePositionIsATermOfItsProduct) {
  Graph g;
  const Value x = g.conv(g.input({3, 8, 8}), {.out = 4}, "x");
  const Value gate = g.activate(g.conv(g.global_avg_pool(x), {.out = 4}, "squeeze"), {ActivationKind::sigmoid});
  const Value y = g.multiply(gate, x);
  const Built built(g);
  EXPECT_EQ(built.last().output, y.id);
  EXPECT_EQ(built.last().inputs, (std::vector{x.id, gate.id})) << "the larger value comes first";
  EXPECT_TRUE(built.last().pointwise->spread);
  EXPECT_EQ(input_box(g, built.last(), image_box({0, 2}, {3, 5}, {1, 2}), 0), image_box({0, 2}, {3, 5}, {1, 2}));
  EXPECT_EQ(input_box(g, built.last(), image_box({0, 2}, {3, 5}, {1, 2}), 1), image_box({0, 2}, {0, 1}, {0, 1}));
}

TEST(Program, NormsThatAgreeWithDifferentRanksAreNotJoined) {
  Graph g;
  const Value x = g.input({3, 8, 8});
  const Value a = g.batch_norm(g.conv(x, {.out = 4}, "a"), "na");
  const Value b = g.group_norm(g.conv(x, {.out = 4}, "b"), "nb", {.groups = 2});
  g.relu(g.add(a, b));
  const Built built(g);
  EXPECT_EQ(step_names(built.program).size(), 5u);  // two convolutions, two norms, the sum with its ReLU
  std::vector<Agreement> agreements;
  for (const auto& step : built.program.steps)
    if (step.agreement != Agreement::none) agreements.push_back(step.agreement);
  EXPECT_EQ(agreements, (std::vector{Agreement::norm, Agreement::tiles}));
  EXPECT_EQ(built.last().agreement, Agreement::none);
}

// A scale agrees on nothing, and a norm that is frozen does not either.
TEST(Program, NormsOfOneKindAreJoinedAndTheStepAgreesAsTheyDo) {
  const auto steps = [](const auto& norm) {
    Graph g;
    const Value x = g.input({3, 8, 8});
    g.add(norm(g, g.conv(x, {.out = 4}, "a"), "na"), norm(g, g.conv(x, {.out = 4}, "b"), "nb"));
    const Built built(g);
    return std::pair(built.program.steps.size(), built.last().agreement);
  };
  EXPECT_EQ(steps([](Graph& g, Value x, const char* name) { return g.group_norm(x, name, {.groups = 2}); }),
            std::pair(std::size_t{3}, Agreement::tiles));
  EXPECT_EQ(steps([](Graph& g, Value x, const char* name) { return g.scale(x, name); }),
            std::pair(std::size_t{3}, Agreement::none));
  EXPECT_EQ(steps([](Graph& g, Value x, const char* name) { return g.batch_norm(x, name, {.frozen = true}); }),
            std::pair(std::size_t{3}, Agreement::none));
}

// Chains of residual blocks come back from their convolutions, but not without end.
TEST(Program, ChainsAreOfBoundedLength) {
  const Graph g = builtin_models().build({.name = "resnet_v1", .image = {3, 8, 8}, .classes = 2, .depth = 62});
  const Built built(g);
  std::vector<int> chain(g.nodes().size());
  int longest = 0, stored = 0;
  for (const auto& step : built.program.steps) {
    if (step.inputs.size() == 2) stored += built.keep({step.output}) == Keep::stored;  // the end of a block
    if (built.keep({step.output}) != Keep::recomputed) continue;
    int before = 0;
    for (int v : step.inputs) before = std::max(before, chain[static_cast<std::size_t>(v)]);
    chain[static_cast<std::size_t>(step.output)] = before + 1;
    longest = std::max(longest, before + 1);
  }
  EXPECT_EQ(longest, 6);
  EXPECT_GT(stored, 0);
}

// The second of two stages, backward from right to left; * gets its weight gradient late:
//
//     images > a | b* > c* > d > loss
TEST(Program, TheLastWeightGradientsBeforeAnotherStagesGradientAreLate) {
  Graph g;
  Value x = g.conv(g.input({3, 8, 8}), {.out = 4}, "a");
  const int entry = x.id;
  for (const char* name : {"b", "c", "d"}) x = g.conv(x, {.out = 4}, name);
  const Program program(g, {entry + 1, x.id + 1}, Recompute::norm);
  const auto late = [&](std::size_t most, int from_before) {
    std::string names;
    const auto put_off = put_off_for_others(
        program.steps, most, [](std::size_t) { return true; }, [&](int v) { return v == from_before; });
    for (std::size_t s = 0; s < put_off.size(); ++s)
      if (put_off[s]) names += program.steps[s].name;
    return names;
  };
  EXPECT_EQ(late(2, entry), "bc");
  EXPECT_EQ(late(5, entry), "bcd");
  EXPECT_EQ(late(2, -1), "") << "nobody waits for this stage";
}

TEST(Program, EveryValueIsReleasedOnceInEachPass) {
  for (const char* name : {"resnet18", "resnet_v2", "amoebanet"}) {
    ModelOptions options{.name = name, .image = {3, 64, 64}, .classes = 2};
    if (options.name == "amoebanet") options.num_layers = 3, options.num_filters = 16;
    if (options.name == "resnet_v2") options.depth = 20;
    const Built built(builtin_models().build(options));
    std::vector<int> forward(built.program.keep.size()), backward(forward.size());
    for (const auto& step : built.program.steps) {
      for (int v : step.release_after_forward) ++forward[static_cast<std::size_t>(v)];
      for (int v : step.release_after_backward) ++backward[static_cast<std::size_t>(v)];
    }
    for (const auto& step : built.program.steps) {
      const auto v = static_cast<std::size_t>(step.output);
      if (&step == &built.program.steps.back()) continue;  // the loss
      EXPECT_EQ(forward[v], built.program.keep[v] == Keep::stored ? 0 : 1) << name << ' ' << step.name;
      EXPECT_EQ(backward[v], built.program.keep[v] == Keep::dropped ? 0 : 1) << name << ' ' << step.name;
    }
  }
}

}  // namespace
}  // namespace tessera
