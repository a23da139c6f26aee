#include "tessera/runtime/conv_trials.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <regex>

#include "tessera/data/synthetic.h"
#include "tessera/models/registry.h"
#include "tessera/ops/way_choices.h"
#include "tessera/runtime/trainer.h"

namespace tessera {
namespace {

// Measured, and nothing known; fixed again afterwards.
class ConvTrialsTest : public testing::Test {
 protected:
  void SetUp() override {
    ways_.choose_by("measured");
    ways_.learn("");
    at::set_num_threads(1);
  }
  void TearDown() override { ways_.choose_by("fixed"); }

  void try_plan(const PlanOptions& options, int threads, at::ScalarType dtype = at::kFloat, bool training = true) {
    const Plan plan = make_plan(graph_, options);
    try_convolutions({.graph = graph_,
                      .plan = plan,
                      .threads = std::vector<int>(static_cast<std::size_t>(plan.ranks()), threads),
                      .activations = dtype,
                      .training = training});
  }
  std::ptrdiff_t lines_with(const std::string& words) const {
    const std::string lines = ways_.lines();
    const std::regex pattern(words);
    return std::distance(std::sregex_iterator(lines.begin(), lines.end(), pattern), std::sregex_iterator());
  }
  // After three steps.
  at::Tensor trained() const {
    const auto images = std::make_shared<SyntheticImages>(
        SyntheticOptions{.classes = 10, .height = 40, .width = 40, .size = 8, .seed = 1});
    Trainer trainer(graph_, make_plan(graph_, {.batch_size = 2}), {.steps = 3, .seed = 1, .loader_workers = 0}, images);
    for (int s = 0; s < 3; ++s) trainer.step();
    return trainer.parameters()[0]->flat_values().clone();
  }

  WayChoices& ways_ = WayChoices::of_process();
  const Graph graph_ = builtin_models().build({.name = "resnet_v1", .image = {3, 40, 40}, .classes = 10, .depth = 8});
};

TEST_F(ConvTrialsTest, AreOfEveryPassOfEveryConvolution) {
  try_plan({.batch_size = 2}, 1);
  // Three widths of 3x3, two of them from a narrower one with a stride, and two short cuts; and the images' own, which
  // want no gradient.
  EXPECT_EQ(lines_with("forward, 1 threads"), 8);
  EXPECT_EQ(lines_with("weight gradient, 1 threads"), 8);
  EXPECT_EQ(lines_with("input gradient, 1 threads"), 7);
  EXPECT_EQ(lines_with("conv 3x3/1x1/1x1 3>16/1, 2x40x40, forward"), 1);
}

TEST_F(ConvTrialsTest, AreOfTheTilesOfAPlanInTheThreadsOfItsRanks) {
  try_plan({.batch_size = 2, .grid = "1x2"}, 2);
  EXPECT_EQ(lines_with("conv 3x3/1x1/1x1 3>16/1, 2x40x20, forward, 2 threads"), 1);
  EXPECT_EQ(lines_with("2x40x40"), 0);
  EXPECT_EQ(lines_with("1 threads"), 0);
  EXPECT_EQ(at::get_num_threads(), 1) << "the caller's number is left as it was";
}

TEST_F(ConvTrialsTest, AreNotRepeated) {
  try_plan({.batch_size = 2}, 1);
  const std::string all = std::regex_replace(ways_.lines(), std::regex("\t[a-z]*\t"), "\tconvolution\t");
  ways_.learn(all);
  try_plan({.batch_size = 2}, 1);
  EXPECT_EQ(ways_.lines(), all);
}

TEST_F(ConvTrialsTest, AreOfForwardAloneWhereNothingIsTrained) {
  try_plan({.batch_size = 2}, 1, at::kFloat, false);
  EXPECT_GT(lines_with("forward"), 0);
  EXPECT_EQ(lines_with("gradient"), 0);
}

TEST_F(ConvTrialsTest, AreNotMadeOfWhatHasNoChoice) {
  try_plan({.batch_size = 2}, 1, at::kDouble);
  EXPECT_EQ(ways_.lines(), "");
  ways_.choose_by("fixed");
  try_plan({.batch_size = 2}, 1);
  EXPECT_EQ(ways_.lines(), "");
}

// A few pixels of a large plane stand for all of it.
TEST_F(ConvTrialsTest, AreOfPartsOfLargePlanes) {
  const Graph large =
      builtin_models().build({.name = "resnet_v1", .image = {3, 4096, 4096}, .classes = 10, .depth = 8});
  const Plan plan = make_plan(large, {.batch_size = 2});
  try_convolutions({.graph = large, .plan = plan, .threads = {1}, .activations = at::kFloat});
  EXPECT_EQ(lines_with("4096"), 0);
  EXPECT_EQ(lines_with("conv 3x3/1x1/1x1 16>16/1, [0-9x]*, forward"), 1);
}

TEST_F(ConvTrialsTest, ChangeWhatIsTrainedByRoundingOnly) {
  ways_.choose_by("fixed");
  const at::Tensor fixed = trained();
  const auto off = [&](const at::Tensor& other) {
    return other.sub(fixed).norm().item().toDouble() / fixed.norm().item().toDouble();
  };
  EXPECT_EQ(off(trained()), 0);
  ways_.choose_by("measured");
  ways_.learn("");
  try_plan({.batch_size = 2}, 1);
  EXPECT_LT(off(trained()), 1e-4);
  // Each in a way that the rules do not take.
  ways_.learn(std::regex_replace(ways_.lines(), std::regex("\t[a-z]*\t"), "\tblocked\t"));
  const double blocked = off(trained());
  EXPECT_LT(blocked, 1e-4);
  EXPECT_GT(blocked, 0) << "the choice was not taken";
}

}  // namespace
}  // namespace tessera
