// The estimate against what runs really take.
#include "tessera/runtime/footprint.h"

#include <gtest/gtest.h>

#include "tessera/comm/threads/thread_communicator.h"
#include "tessera/data/synthetic.h"
#include "tessera/models/registry.h"
#include "tessera/runtime/memory.h"
#include "tessera/runtime/trainer.h"

namespace tessera {
namespace {

struct Case {
  std::string name;
  PlanOptions plan;
  Recompute recompute = Recompute::norm;
  ModelOptions model = {.name = "resnet_v2",
                        .image = {3, 96, 96},
                        .classes = 10,
                        .depth = 29,
                        .num_layers = {},
                        .num_filters = {},
                        .upsampling = {}};
};

class Footprint : public testing::TestWithParam<Case> {};

TEST_P(Footprint, IsNearTheMeasuredPeakOnEveryRank) {
  install_cpu_allocator();
  const ModelOptions& model = GetParam().model;
  const Graph graph = builtin_models().build(model);
  const Plan plan = make_plan(graph, GetParam().plan);
  const auto predicted =
      predicted_memory(plan, graph, {.element_bytes = 8, .common = true, .recompute = GetParam().recompute});
  const auto images = std::make_shared<SyntheticImages>(
      SyntheticOptions{.classes = static_cast<int>(model.classes),
                       .height = model.image.height,
                       .width = model.image.width,
                       .size = 64,
                       .seed = 1,
                       .mask_classes = graph.label_kind() == LabelKind::pixel ? static_cast<int>(model.classes) : 0});
  std::vector<double> measured(static_cast<std::size_t>(plan.ranks()));
  run_thread_ranks(plan.ranks(), [&](Communicator& world) {
    const auto account = std::make_shared<MemoryAccount>();
    const MemoryScope scope(account);
    const TrainOptions options{
        .steps = 2, .dtype = at::kDouble, .recompute = GetParam().recompute, .loader_workers = 0};
    Trainer trainer(graph, plan, options, images, &world);
    for (int s = 0; s < 2; ++s) trainer.step();
    measured[static_cast<std::size_t>(world.rank().value)] = static_cast<double>(account->peak_bytes());
  });
  for (std::size_t r = 0; r < measured.size(); ++r) {
    RecordProperty("rank " + std::to_string(r), std::to_string(predicted[r] / measured[r]));
    EXPECT_GT(predicted[r], 0.78 * measured[r]) << "rank " << r << ": " << predicted[r] << " of " << measured[r];
    EXPECT_LT(predicted[r], 1.3 * measured[r]) << "rank " << r << ": " << predicted[r] << " of " << measured[r];
  }
}

INSTANTIATE_TEST_SUITE_P(
    Plans, Footprint,
    testing::Values(
        Case{"one_rank", {.batch_size = 4}},
        Case{
            "blocks_recomputed", {.batch_size = 8, .parts = 4, .split_size = 3, .schedule = "gpipe"}, Recompute::block},
        // Many weights and few pixels; values of many sizes, and joined ones.
        Case{"weights", {.batch_size = 1}, Recompute::norm, {.name = "resnet18", .image = {3, 64, 64}, .classes = 10}},
        Case{"skips",
             {.batch_size = 1},
             Recompute::norm,
             {.name = "unet", .image = {3, 96, 96}, .classes = 3, .num_filters = 16}},
        Case{"tiles", {.batch_size = 4, .grid = "2x2"}},
        Case{"gpipe", {.batch_size = 8, .parts = 4, .split_size = 3, .schedule = "gpipe"}},
        Case{"one_f_one_b", {.batch_size = 8, .parts = 4, .split_size = 3}},
        Case{"gems", {.batch_size = 4, .split_size = 3, .times = 2}},
        Case{"tiles_and_gems", {.batch_size = 4, .split_size = 2, .num_spatial_parts = "2", .times = 1}}),
    [](const auto& row) { return row.param.name; });

}  // namespace
}  // namespace tessera
