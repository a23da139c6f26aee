// The memory that a plan was said to take against what its ranks take: the peak of tensor bytes, of every rank.
#include <ATen/Parallel.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include "support/ranks.h"
#include "tessera/data/synthetic.h"
#include "tessera/models/registry.h"
#include "tessera/runtime/conv_trials.h"
#include "tessera/runtime/memory.h"
#include "tessera/runtime/trainer.h"
#include "tessera/runtime/workspaces.h"

namespace tessera {
namespace {

struct Network {
  std::string name;
  ModelOptions options;
};

struct Case {
  Network network;
  std::string name;
  PlanOptions plan;
  Recompute recompute = Recompute::norm;
  OptimizerOptions optimizer = {};
  int workers = 0;
  std::optional<double> room = std::nullopt;  // with a store: what may wait on the device
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.network.name << ", " << c.name; }

class Memory : public testing::TestWithParam<Case> {};

TEST_P(Memory, IsAsPredictedOnEveryRank) {
  install_cpu_allocator();
  const Case& c = GetParam();
  const Graph graph = builtin_models().build(c.network.options);
  const Plan plan = make_plan(graph, c.plan);
  if (plan.ranks() > test::most_ranks(16)) GTEST_SKIP() << "takes " << plan.ranks() << " ranks";
  at::set_num_threads(1);
  // What is predicted is what the chosen ways take; nothing is tried where rules choose.
  try_convolutions({.graph = graph,
                    .plan = plan,
                    .threads = std::vector<int>(static_cast<std::size_t>(plan.ranks()), 1),
                    .activations = at::kFloat});
  const auto predicted = predicted_memory(plan, graph,
                                          {.element_bytes = 4,
                                           .states = c.optimizer.name == "adam" ? 2 : 1,
                                           .common = test::ranks_are_threads(),
                                           .ahead = c.workers > 0 ? std::optional(ReadAhead{}) : std::nullopt,
                                           .recompute = c.recompute,
                                           .workspace = kernel_workspaces(graph, at::kFloat),
                                           .store = c.room.has_value(),
                                           .room = c.room.value_or(0)});
  const ModelOptions& model = c.network.options;
  const auto images = std::make_shared<SyntheticImages>(
      SyntheticOptions{.classes = static_cast<int>(model.classes),
                       .height = model.image.height,
                       .width = model.image.width,
                       .size = 64,
                       .seed = 1,
                       .mask_classes = graph.label_kind() == LabelKind::pixel ? static_cast<int>(model.classes) : 0});
  test::on_ranks(plan.ranks(), [&](Communicator& world) {
    at::set_num_threads(1);
    const auto rank = static_cast<std::size_t>(world.rank().value);
    const Footprint& mine = predicted[rank % predicted.size()];
    double measured = 0;
    const auto near = [&] { return mine.peak() > 0.97 * measured && mine.peak() < 1.03 * measured; };
    // On a busy machine a message now and then waits for its receiver in the sender's memory: that is no fault of the
    // prediction, and does not happen every time.
    bool good = false;
    for (int attempt = 0; attempt < 3 && !good; ++attempt) {
      const auto account = std::make_shared<MemoryAccount>();
      const MemoryScope scope(account);
      constexpr int steps = 3;  // by then every buffer that is kept has been taken
      Trainer trainer(graph, plan,
                      {.steps = steps,
                       .optimizer = c.optimizer,
                       .recompute = c.recompute,
                       .store = c.room ? StoreKind::file : StoreKind::device,
                       .scratch = c.room ? testing::TempDir() : "",
                       .room = c.room.value_or(0),
                       .loader_workers = c.workers},
                      images, &world);
      for (int s = 0; s < steps; ++s) trainer.step();
      measured = static_cast<double>(account->peak_bytes());
      const at::Tensor far = at::full({1}, near() ? 0 : 1, at::kLong);
      world.all_reduce(far, Reduce::max).wait();
      good = far.item<std::int64_t>() == 0;
    }
    EXPECT_TRUE(near()) << "rank " << rank << ": predicted " << mine.peak() << " (parameters " << mine.parameters
                        << ", images " << mine.images << ", activations " << mine.activations << "), measured "
                        << measured;
  });
}

std::vector<Case> cases() {
  const Network resnet18{"resnet18", {.name = "resnet18", .image = {3, 128, 128}, .classes = 10}};
  const Network resnet50{"resnet50", {.name = "resnet50", .image = {3, 96, 96}, .classes = 10}};
  const Network v1{"resnet_v1", {.name = "resnet_v1", .image = {3, 128, 128}, .classes = 10, .depth = 20}};
  const Network v2{"resnet_v2", {.name = "resnet_v2", .image = {3, 128, 128}, .classes = 10, .depth = 29}};
  const Network amoeba{
      "amoebanet", {.name = "amoebanet", .image = {3, 128, 128}, .classes = 10, .num_layers = 3, .num_filters = 32}};
  const Network unet{"unet", {.name = "unet", .image = {3, 128, 128}, .classes = 3, .num_filters = 16}};
  const OptimizerOptions adam{.name = "adam", .lr = 1e-3};

  std::vector<Case> out;
  for (const Network& n : {resnet18, resnet50, v1, v2, amoeba, unet}) {
    out.push_back({n, "one_rank", {.batch_size = 2}});
    out.push_back({n, "nothing_made_again", {.batch_size = 2}, Recompute::none, adam});
    out.push_back({n, "blocks", {.batch_size = 2}, Recompute::block, {}, 1});
    out.push_back({n, "2x2", {.batch_size = 2, .grid = "2x2"}});
    out.push_back({n, "two_stages_1f1b", {.batch_size = 8, .parts = 4, .split_size = 2}});
    out.push_back({n, "gems", {.batch_size = 2, .split_size = 2, .times = 2}});
    out.push_back({n, "turns", {.batch_size = 2, .turns = "2x2"}});
    out.push_back({n, "turns_blocks", {.batch_size = 2, .turns = "2x2"}, {Recompute::block, 2}});
    for (const double room : {0.0, 4e6})
      out.push_back({n,
                     room > 0 ? "turns_with_room" : "turns_in_a_file",
                     {.batch_size = 2, .turns = "2x2"},
                     {Recompute::block, 2},
                     {},
                     0,
                     room});
    out.push_back({n, "in_a_file", {.batch_size = 2}, Recompute::none, {}, 0, 0.0});
  }
  out.push_back({v1, "turns_of_stages", {.batch_size = 1, .split_size = 2, .turns = "4x4"}});
  for (const Network& n : {v1, v2, amoeba}) {
    out.push_back({n, "3x1_fused", {.batch_size = 2, .grid = "3x1", .fused_layers = 3, .halo_d2 = true}});
    out.push_back({n, "chimera", {.batch_size = 4, .parts = 4, .split_size = 2, .schedule = "chimera"}});
    out.push_back({n, "tiles_and_stage", {.batch_size = 4, .parts = 2, .split_size = 2, .num_spatial_parts = "4"}});
    out.push_back({n, "tiles_and_gems", {.batch_size = 4, .split_size = 2, .num_spatial_parts = "2", .times = 1}});
    out.push_back({n, "replicas", {.batch_size = 2, .replicas = 2}});
    // Here amoebanet's micros are so quick that messages wait for their receivers, now and then, in the sender's
    // memory.
    if (n.name == amoeba.name) continue;
    out.push_back({n, "gpipe", {.batch_size = 8, .parts = 4, .split_size = 3, .schedule = "gpipe"}});
    out.push_back(
        {n, "gpipe_blocks", {.batch_size = 8, .parts = 4, .split_size = 3, .schedule = "gpipe"}, Recompute::block});
    out.push_back({n, "zero_bubble", {.batch_size = 8, .parts = 4, .split_size = 3, .schedule = "zero-bubble"}});
  }
  return out;
}

INSTANTIATE_TEST_SUITE_P(Plans, Memory, testing::ValuesIn(cases()),
                         [](const auto& row) { return row.param.network.name + "_" + row.param.name; });

}  // namespace
}  // namespace tessera
