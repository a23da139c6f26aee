#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/core/Tensor.h>

#include "tessera/comm/threads/thread_communicator.h"
#include "tessera/models/registry.h"
#include "tessera/trials/link_trials.h"
#include "tessera/trials/rehearsal.h"

namespace tessera {
namespace {

Graph network(const std::string& name, std::int64_t size) {
  ModelOptions options{.name = name, .image = {3, size, size}, .classes = 3};
  if (name == "unet") {
    options.num_layers = 2;
    options.num_filters = 8;
  } else {
    options.depth = 8;
  }
  return builtin_models().build(options);
}

void expect_positive(const Work& work, bool split) {
  EXPECT_GT(work.forward, 0);
  EXPECT_GT(work.input_gradient, 0);
  if (split)
    EXPECT_GT(work.weight_gradient, 0);
  else
    EXPECT_EQ(work.weight_gradient, 0);
}

TEST(Rehearsal, EveryStageOfEveryKindOfPlanCanBeTriedOut) {
  for (const char* name : {"resnet_v1", "unet"}) {
    const Graph graph = network(name, 48);
    for (const PlanOptions& options :
         {PlanOptions{.batch_size = 2}, PlanOptions{.batch_size = 4, .parts = 2, .split_size = 2},
          PlanOptions{.batch_size = 2, .grid = "2x2"},
          PlanOptions{.batch_size = 2, .split_size = 2, .grid = "1x3", .spatial_size = 1, .local_dp = 2},
          PlanOptions{.batch_size = 2, .grid = "2x2", .halo_d2 = true},
          PlanOptions{.batch_size = 2, .parts = 2, .split_size = 2, .schedule = "gems-mast"}}) {
      const Plan plan = make_plan(graph, options);
      const Layout layout = make_layout(graph, plan);
      for (const Recompute recompute : {Recompute(Recompute::norm), Recompute(Recompute::block)})
        for (const bool split : {false, true})
          for (int s = 0; s < static_cast<int>(plan.stages.size()); ++s)
            expect_positive(
                rehearse({.graph = graph, .activations = at::kFloat, .recompute = recompute}, plan, layout, s, split),
                split);
    }
  }
}

TEST(Rehearsal, EveryCellHasEveryPass) {
  const Graph graph = network("resnet_v1", 48);
  CellCosts costs(static_cast<int>(graph.cells().size()));
  rehearse_cells({.graph = graph, .activations = at::kFloat}, 2, costs);
  for (int cell = 0; cell < costs.cells(); ++cell) expect_positive(costs.at(cell, 1, 2), /*split=*/true);
}

TEST(LinkTrials, AllRanksLearnTheSame) {
  std::vector<Links> links(3);
  run_thread_ranks(3, [&](Communicator& world) {
    links[static_cast<std::size_t>(world.rank().value)] = try_links(world, at::kFloat);
  });
  for (const Links& l : links) {
    EXPECT_GT(l.message, 0);
    EXPECT_GT(l.agreement, 0);
    EXPECT_GT(l.message_bytes, 1e6);
    EXPECT_GT(l.sum_bytes, 1e6);
    EXPECT_EQ(l.message, links[0].message);
    EXPECT_EQ(l.sum_bytes, links[0].sum_bytes);
  }
}

TEST(UpdateRate, IsWhatMemoryAllows) {
  const double rate = update_rate({}, at::kFloat, 1);
  EXPECT_GT(rate, 1e7);
  EXPECT_LT(rate, 1e12);
}

}  // namespace
}  // namespace tessera
