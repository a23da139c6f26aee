// eval and predict as a user runs them, with weights that the test has written: any plan reads them and says the same.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tessera/app/program.h"
#include "tessera/data/csv.h"
#include "tessera/data/files.h"
#include "tessera/data/synthetic.h"
#include "tessera/io/safetensors.h"
#include "tessera/models/registry.h"
#include "tessera/runtime/evaluator.h"
#include "unit/data/temp_folder.h"

namespace tessera {
namespace {

using testing::HasSubstr;

constexpr std::uint64_t seed = 11;

class Program : public testing::Test {
 protected:
  Program() {
    const Parameters parameters(graph_, 0, static_cast<int>(graph_.nodes().size()), at::kDouble, seed);
    std::vector<NamedTensor> tensors;
    for (const auto& p : parameters.all()) tensors.push_back({p.name, p.value});
    write_safetensors_file(folder_ / "model.safetensors", tensors);
  }

  /// The exit code of `tessera COMMAND ...` on the 10 synthetic images of seed 0's validation set.
  int run(const std::string& command, std::vector<std::string> arguments) const {
    std::vector<std::string> all{"tessera",
                                 command,
                                 "--model",
                                 "resnet_v1",
                                 "--depth",
                                 "8",
                                 "--image-size",
                                 "18x20",
                                 "--num-classes",
                                 "2",
                                 "--dtype",
                                 "float64",
                                 "--batch-size",
                                 "4",
                                 "--synthetic-images",
                                 "40",
                                 "--weights",
                                 folder_ / "model.safetensors"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    std::vector<char*> argv;
    for (auto& argument : all) argv.push_back(argument.data());
    return run_program(static_cast<int>(argv.size()), argv.data(), builtin_models());
  }
  std::string text(const std::string& name) const { return files::text_of(folder_ / name); }

  const Graph graph_ = builtin_models().build({.name = "resnet_v1", .image = {3, 18, 20}, .classes = 2, .depth = 8});
  TempFolder folder_;
};

TEST_F(Program, PredictsTheSameOnEveryPlan) {
  ASSERT_EQ(run("predict", {"--output", folder_ / "one.csv"}), 0);
  const auto rows = parse_csv(text("one.csv"), "one.csv");
  ASSERT_EQ(rows.size(), 11u);
  EXPECT_THAT(rows[0].fields, testing::ElementsAre("index", "label", "predicted", "p_0", "p_1"));
  for (std::size_t i = 1; i < rows.size(); ++i) {
    const double p = std::stod(rows[i].fields[3]), q = std::stod(rows[i].fields[4]);
    EXPECT_EQ(rows[i].fields[0], std::to_string(i - 1));
    EXPECT_NEAR(p + q, 1, 1e-8);
    EXPECT_EQ(rows[i].fields[2], p >= q ? "0" : "1");
  }
  ASSERT_EQ(run("predict", {"--output", folder_ / "tiles.csv", "--grid", "2x2"}), 0);
  ASSERT_EQ(
      run("predict", {"--output", folder_ / "stages.csv", "--split-size", "2", "--parts", "2", "--replicas", "2"}), 0);
  EXPECT_EQ(text("tiles.csv"), text("one.csv"));
  EXPECT_EQ(text("stages.csv"), text("one.csv"));
}

// Against the evaluator, on the parameters themselves.
TEST_F(Program, EvaluatesTheWeightsOfTheFile) {
  ASSERT_EQ(run("eval", {"--json", folder_ / "eval.json", "--quiet", "--split", "train"}), 0);
  const auto result = nlohmann::json::parse(text("eval.json"))["evaluation"];
  const Parameters parameters(graph_, 0, static_cast<int>(graph_.nodes().size()), at::kDouble, seed);
  const auto images =
      std::make_shared<SyntheticImages>(SyntheticOptions{.classes = 2, .height = 18, .width = 20, .size = 40});
  const Evaluation expected =
      Evaluator(graph_, make_plan(graph_, {.batch_size = 4}), parameters, {.dtype = at::kDouble}, images).run();
  EXPECT_EQ(result["images"], 40);
  EXPECT_NEAR(result["loss"].get<double>(), expected.loss.value(), 1e-12);
  EXPECT_NEAR(result["accuracy"].get<double>(), expected.confusion.accuracy().value(), 1e-12);
  EXPECT_NEAR(result["auc"].get<double>(), expected.auc.value(), 1e-12);
  EXPECT_EQ(result["confusion"][1][0], expected.confusion.count(1, 0));
}

TEST_F(Program, PredictsMasksAlikeOnEveryPlan) {
  const ModelOptions model{.name = "unet", .image = {3, 30, 26}, .classes = 3, .num_layers = 2, .num_filters = 4};
  const Graph graph = builtin_models().build(model);
  const Parameters parameters(graph, 0, static_cast<int>(graph.nodes().size()), at::kFloat, seed);
  std::vector<NamedTensor> tensors;
  for (const auto& p : parameters.all()) tensors.push_back({p.name, p.value});
  write_safetensors_file(folder_ / "unet.safetensors", tensors);
  const auto run_unet = [&](const std::string& command, std::vector<std::string> more) {
    std::vector<std::string> all{"tessera",
                                 command,
                                 "--model",
                                 "unet",
                                 "--num-layers",
                                 "2",
                                 "--num-filters",
                                 "4",
                                 "--image-size",
                                 "30x26",
                                 "--num-classes",
                                 "3",
                                 "--dtype",
                                 "float64",
                                 "--batch-size",
                                 "2",
                                 "--synthetic-images",
                                 "12",
                                 "--quiet",
                                 "--weights",
                                 folder_ / "unet.safetensors"};
    all.insert(all.end(), more.begin(), more.end());
    std::vector<char*> argv;
    for (auto& argument : all) argv.push_back(argument.data());
    return run_program(static_cast<int>(argv.size()), argv.data(), builtin_models());
  };
  ASSERT_EQ(run_unet("predict", {"--output", folder_ / "one"}), 0);
  ASSERT_EQ(run_unet("predict", {"--output", folder_ / "tiles", "--grid", "2x2"}), 0);
  const auto names = files::names_in(folder_ / "one");
  EXPECT_THAT(names, testing::ElementsAre("0.tif", "1.tif", "2.tif"));
  for (const auto& name : names) EXPECT_EQ(text("tiles/" + name), text("one/" + name)) << name;

  ASSERT_EQ(run_unet("eval", {"--json", folder_ / "eval.json", "--grid", "1x2"}), 0);
  const auto result = nlohmann::json::parse(text("eval.json"))["evaluation"];
  EXPECT_EQ(result["labels"], "pixels");
  EXPECT_EQ(result["labelled"], 3 * 30 * 26);
  EXPECT_TRUE(result["mean_iou"].is_number());
}

TEST_F(Program, RefusesWeightsThatAreCutShort) {
  folder_.cut("model.safetensors", 1000);
  testing::internal::CaptureStderr();
  EXPECT_EQ(run("eval", {"--quiet"}), 2);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("--weights"));
}

}  // namespace
}  // namespace tessera
