#include "tessera/runtime/program.h"

#include <gtest/gtest.h>

#include "tessera/base/error.h"
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
      : graph(std::move(g)),
        plan(sequential_plan(graph, {.batch_size = 2, .stages = {{.ranks = {0}}}})),
        parameters(graph, 0, static_cast<int>(graph.nodes().size()), at::kFloat, 1),
        program(graph, plan.stages[0], make_layout(graph, plan).stages[0], parameters, recompute) {}
  Keep keep(Value v) const { return program.keep[static_cast<std::size_t>(v.id)]; }
  Graph graph;
  Plan plan;
  Parameters parameters;
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
