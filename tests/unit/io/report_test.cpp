#include "tessera/io/report.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "support/scratch.h"
#include "tessera/base/error.h"
#include "tessera/models/registry.h"

namespace tessera {
namespace {

// By POSIX calls: see tessera/data/files.h on std::filesystem.
class Report : public test::ScratchFolder {
 protected:
  nlohmann::json read(const std::string& name) const {
    std::ifstream in(path(name));
    return nlohmann::json::parse(in);
  }
  static bool exists(const std::string& file) { return access(file.c_str(), F_OK) == 0; }
  const Graph graph_ = builtin_models().build({.name = "resnet_v1", .image = {3, 16, 16}, .classes = 3, .depth = 8});
  const Plan plan_ = make_plan(graph_, {.batch_size = 8, .parts = 2});
};

TEST_F(Report, HoldsPlanStepsSpeedAndMemory) {
  RunReport report{.command = {"tessera", "train"}, .model = "resnet_v1", .dtype = "float32", .threads = {2}};
  for (int i = 0; i < 5; ++i) report.steps.push_back({.step = i, .loss = 2.0 - i, .seconds = i == 0 ? 100.0 : 0.5});
  report.peak_bytes = {1234};
  write_report(path("run.json"), report, plan_, graph_);
  const auto json = read("run.json");
  EXPECT_EQ(json["plan"]["micros"], 2);
  EXPECT_EQ(json["plan"]["stages"][0]["ranks"][0], 0);
  EXPECT_EQ(json["steps"].size(), 5u);
  EXPECT_EQ(json["steps"][4]["step"], 5);
  EXPECT_EQ(json["steps"][1]["loss"], 1.0);
  EXPECT_EQ(json["images_per_second"]["median"], 16.0);  // the first step does not count
  EXPECT_EQ(json["peak_bytes"][0], 1234);
  for (const char* key : {"tessera", "machine", "command", "peak_resident_bytes"})
    EXPECT_TRUE(json.contains(key)) << key;
  EXPECT_FALSE(exists(path("run.json.part")));
}

TEST_F(Report, APlaceThatCannotBeWrittenIsFoundBeforeTheRun) {
  EXPECT_THROW(check_writable("--json", path("no/such/run.json")), UsageError);
  EXPECT_THROW(check_writable("--json", path(".")), UsageError);
  EXPECT_NO_THROW(check_writable("--json", path("run.json")));
  EXPECT_FALSE(exists(path("run.json")) || exists(path("run.json.part")));
}

TEST_F(Report, AFullDiskIsAnErrorAndKeepsTheOldDocument) {
  if (!exists("/dev/full")) FAIL() << "this system has no /dev/full to test with";
  const std::string file = path("run.json");
  std::ofstream(file) << "{}\n";
  ASSERT_EQ(symlink("/dev/full", path("run.json.part").c_str()), 0);
  EXPECT_THROW(write_plan(file, plan_, graph_, {}, 4, {}), Error);
  EXPECT_EQ(read("run.json"), nlohmann::json::object());
}

TEST_F(Report, AnInfiniteDifferenceIsStillJson) {
  VerifyReport report{.passed = false, .tolerance = 1e-10, .largest = INFINITY, .compared = 1};
  report.differences.push_back({"loss", 0, INFINITY});
  write_verification(path("v.json"), report, plan_, graph_);
  EXPECT_TRUE(read("v.json")["largest"].is_null());
}

TEST(Spread, IsOfPercentiles) {
  const Spread s = spread_of({5, 1, 3, 2, 4});
  EXPECT_EQ(s.median, 3);
  EXPECT_EQ(s.low, 1);
  EXPECT_EQ(s.high, 5);
  EXPECT_EQ(spread_of({}).median, 0);
}

}  // namespace
}  // namespace tessera
