#include "tessera/io/checkpoint.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "support/scratch.h"
#include "tessera/io/background_writer.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// What rank `shard` owns after `step` steps.
ShardContents contents(int shard, std::int64_t step, std::int64_t elements = 10) {
  const std::string layer = "layer" + std::to_string(shard);
  const double value = 100 * shard + static_cast<double>(step);
  return {
      .model = {{layer + ".weight", at::full({elements, 2}, value)}, {layer + ".count", at::full({}, step, at::kLong)}},
      .optimizer = {{layer + ".weight.momentum_buffer", at::full({elements, 2}, -value)}}};
}

RunState state_of(std::int64_t step) {
  return {.step = step,
          .epoch = 3,
          .position = 640,
          .seed = 18446744073709551615u,
          .global_batch = 32,
          .model = "resnet18",
          .dtype = "float32",
          .optimizer = "sgd",
          .version = "0.1.0",
          .settings = {{"lr", "0.1"}},
          .plan = R"({"stages": 2})"};
}

class Checkpoint : public test::ScratchFolder {
 protected:
  ShardPlace place(std::int64_t step, int shard = 0, int shards = 2) const {
    return {.dir = path("run"), .step = step, .shard = shard, .shards = shards};
  }
  void save(std::int64_t step, const FinishOptions& options = {}) const {
    for (const int shard : {1, 0}) write_shard(place(step, shard), contents(shard, step));
    finish_checkpoint(place(step), state_of(step), options);
  }
  std::string file(std::int64_t step, const std::string& name) const { return join_path(place(step).folder(), name); }
  std::vector<std::string> listed() const { return list_folder(path("run")); }
  std::string latest() {
    warnings_.clear();
    return find_latest(path("run"), [&](const std::string& w) { warnings_.push_back(w); }).value_or("none");
  }
  std::vector<std::string> warnings_;
};

TEST_F(Checkpoint, HoldsWhatEveryRankOwnsUnderTheNamesOfTheGraph) {
  save(120);
  EXPECT_THAT(listed(), ElementsAre("step-000120"));
  EXPECT_THAT(
      list_folder(place(120).folder()),
      ElementsAre("checksums.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
                  "model.safetensors.index.json", "optimizer-00001-of-00002.safetensors",
                  "optimizer-00002-of-00002.safetensors", "optimizer.safetensors.index.json", "run_state.json"));
  const CheckpointReader reader(place(120).folder());
  EXPECT_THAT(reader.model().names(), ElementsAre("layer0.count", "layer0.weight", "layer1.count", "layer1.weight"));
  EXPECT_THAT(reader.optimizer().names(),
              ElementsAre("layer0.weight.momentum_buffer", "layer1.weight.momentum_buffer"));
  const at::Tensor weight = at::zeros({10, 2}, at::kDouble), momentum = at::zeros({10, 2}),
                   count = at::zeros({}, at::kLong);
  reader.read("layer1.weight", weight);
  reader.read("layer1.weight.momentum_buffer", momentum);
  reader.read("layer0.count", count);
  EXPECT_TRUE(at::equal(weight, at::full({10, 2}, 220, at::kDouble)));
  EXPECT_TRUE(at::equal(momentum, at::full({10, 2}, -220.f)));
  EXPECT_EQ(count.item<std::int64_t>(), 120);
}

TEST_F(Checkpoint, HasTheIndexOfHuggingFace) {
  save(1);
  const auto index = nlohmann::json::parse(read_text(file(1, "model.safetensors.index.json")));
  EXPECT_EQ(index["metadata"]["total_size"], 2 * (80 + 8));
  EXPECT_EQ(index["weight_map"]["layer1.weight"], "model-00002-of-00002.safetensors");
  EXPECT_EQ(SafetensorsFile(file(1, "model-00001-of-00002.safetensors")).metadata().at("format"), "pt");
  EXPECT_EQ(TensorStore::open(place(1).folder()).names().size(), 4u);
}

TEST_F(Checkpoint, KeepsTheStateOfTheRun) {
  save(7);
  const RunState state = CheckpointReader(place(7).folder()).state(), expected = state_of(7);
  EXPECT_EQ(state.step, expected.step);
  EXPECT_EQ(state.epoch, expected.epoch);
  EXPECT_EQ(state.position, expected.position);
  EXPECT_EQ(state.seed, expected.seed);
  EXPECT_EQ(state.global_batch, expected.global_batch);
  EXPECT_EQ(state.model, expected.model);
  EXPECT_EQ(state.dtype, expected.dtype);
  EXPECT_EQ(state.optimizer, expected.optimizer);
  EXPECT_EQ(state.version, expected.version);
  EXPECT_EQ(state.settings, expected.settings);
  EXPECT_EQ(nlohmann::json::parse(read_text(file(7, "run_state.json")))["plan"]["stages"], 2);
}

TEST(RunStateFile, ThatIsNotOneIsRefusedByField) {
  const auto refusal = [](const char* key, const nlohmann::json& value) {
    auto json = nlohmann::json::parse(to_json(state_of(1)));
    json[key] = value;
    return test::error_of([&] { parse_run_state(json.dump(), "FILE"); });
  };
  EXPECT_THAT(refusal("step", -1), AllOf(HasSubstr("FILE"), HasSubstr("\"step\" is -1")));
  EXPECT_THAT(refusal("step", 1.5), HasSubstr("\"step\""));
  EXPECT_THAT(refusal("step", 18446744073709551615u), HasSubstr("in range"));
  EXPECT_THAT(refusal("seed", -1), HasSubstr("\"seed\""));
  EXPECT_THAT(refusal("model", nullptr), HasSubstr("\"model\""));
  EXPECT_THAT(refusal("format", 2), HasSubstr("format 2"));
  EXPECT_THAT(test::error_of([&] { parse_run_state("{\"format\": 1}", "FILE"); }), HasSubstr("no field \"step\""));
  EXPECT_THAT(test::error_of([&] { parse_run_state("[]", "FILE"); }), HasSubstr("FILE"));
}

TEST_F(Checkpoint, WithoutStateOfTheOptimizerIsOneToo) {
  write_shard(place(5, 0, 1), {.model = contents(0, 5).model});
  finish_checkpoint(place(5, 0, 1), state_of(5));
  verify_checkpoint(place(5).folder());
  EXPECT_THAT(CheckpointReader(place(5).folder()).optimizer().names(), IsEmpty());
}

TEST_F(Checkpoint, AppearsOnlyWhenItIsWhole) {
  save(1);
  write_shard(place(2, 0), contents(0, 2));
  EXPECT_EQ(latest(), place(1).folder());
  EXPECT_THAT(test::error_of([&] { finish_checkpoint(place(2), state_of(2), {.wait_seconds = 0.05}); }),
              AllOf(HasSubstr("step 2"), HasSubstr("shard 2 of 2 did not come")));
  EXPECT_EQ(latest(), place(1).folder());
  EXPECT_THAT(warnings_, IsEmpty());
  write_shard(place(2, 1), contents(1, 2));
  finish_checkpoint(place(2), state_of(2));
  EXPECT_EQ(latest(), place(2).folder());
}

TEST_F(Checkpoint, WaitsForAShardThatComesLate) {
  write_shard(place(2, 0), contents(0, 2));
  std::jthread late([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    write_shard(place(2, 1), contents(1, 2));
  });
  finish_checkpoint(place(2), state_of(2));
  EXPECT_EQ(latest(), place(2).folder());
}

// On a disk that became read-only, a rank that fails cannot even say so.
TEST_F(Checkpoint, DoesNotWaitForWordFromWhereNobodyCanWrite) {
  write_shard(place(2, 0), contents(0, 2));
  std::filesystem::remove_all(place(2).part());
  EXPECT_THAT(
      test::error_of([&] { finish_checkpoint(place(2), state_of(2), {.wait_seconds = 20, .hurried_seconds = 0}); }),
      AllOf(HasSubstr("shard 1 of 2 did not come"), HasSubstr("No such file")));
}

TEST_F(Checkpoint, OfAnotherAttemptLendsNoShards) {
  ShardPlace killed = place(3, 1);
  killed.attempt = "killed";
  write_shard(killed, contents(1, 3));
  write_shard(place(3, 0), contents(0, 3));
  EXPECT_THROW(finish_checkpoint(place(3), state_of(3), {.wait_seconds = 0}), Error);
  remove_leftovers(path("run"));
  EXPECT_THAT(listed(), IsEmpty());
}

TEST_F(Checkpoint, ReplacesAnEarlierOneOfTheSameStep) {
  save(4);
  write_shard(place(4, 0, 1), contents(0, 44));
  finish_checkpoint(place(4, 0, 1), state_of(4));
  EXPECT_THAT(listed(), ElementsAre("step-000004"));
  EXPECT_EQ(CheckpointReader(place(4).folder()).model().read("layer0.count").item<std::int64_t>(), 44);
  EXPECT_EQ(latest(), place(4).folder());
}

TEST_F(Checkpoint, OnAFullDiskIsGivenUpAndTheOneBeforeStays) {
  save(1);
  {
    const test::FullDisk full(4000);
    EXPECT_THAT(test::error_of([&] { write_shard(place(2, 1), contents(1, 2, 1000)); }),
                AllOf(HasSubstr("model-00002-of-00002.safetensors"), HasSubstr("free some space")));
  }
  EXPECT_THAT(list_folder(place(2).part()), ElementsAre(".shard-00002.json"));
  write_shard(place(2, 0), contents(0, 2));
  EXPECT_THAT(test::error_of([&] { finish_checkpoint(place(2), state_of(2)); }),
              AllOf(HasSubstr("shard 2 of 2 failed"), HasSubstr("model-00002-of-00002.safetensors")));
  EXPECT_THAT(listed(), ElementsAre("step-000001"));
  EXPECT_EQ(latest(), place(1).folder());
}

TEST_F(Checkpoint, GivesBackTheRoomOfAModelWhoseOptimizerFoundNone) {
  ShardContents large = contents(1, 2);
  large.optimizer[0].tensor = at::zeros({5000});
  const test::FullDisk full(4000);
  EXPECT_THAT(test::error_of([&] { write_shard(place(2, 1), large); }),
              HasSubstr("optimizer-00002-of-00002.safetensors"));
  EXPECT_THAT(list_folder(place(2).part()), ElementsAre(".shard-00002.json"));
}

TEST_F(Checkpoint, WhoseDocumentsFindNoRoomIsGivenUp) {
  save(1);
  for (const int shard : {0, 1}) write_shard(place(2, shard), contents(shard, 2));
  ASSERT_EQ(symlink("/dev/full", join_path(place(2).part(), "run_state.json").c_str()), 0);
  EXPECT_THAT(test::error_of([&] { finish_checkpoint(place(2), state_of(2)); }), HasSubstr("No space left"));
  EXPECT_THAT(listed(), ElementsAre("step-000001"));
  EXPECT_EQ(latest(), place(1).folder());
}

TEST_F(Checkpoint, InAPlaceThatCannotBeWrittenIsAnError) {
  write_text(path("run"), "a file");
  EXPECT_THAT(test::error_of([&] { write_shard(place(1), contents(0, 1)); }), HasSubstr(path("run")));
}

TEST_F(Checkpoint, TensorsWithTwoOwnersOrNoneAreFound) {
  write_shard(place(1, 0), contents(0, 1));
  write_shard(place(1, 1), contents(0, 1));
  EXPECT_THAT(test::error_of([&] { finish_checkpoint(place(1), state_of(1)); }),
              AllOf(HasSubstr("'layer0.count'"), HasSubstr("model-00001-of-00002"), HasSubstr("model-00002-of-00002")));
  EXPECT_THAT(test::error_of([&] {
                save(1, {.parameters = {"layer0.weight", "layer9.weight"}});
              }),
              HasSubstr("'layer9.weight'"));
  EXPECT_THAT(listed(), IsEmpty());
}

TEST_F(Checkpoint, ThatIsDamagedIsPassedOverWithAWarningThatNamesTheFile) {
  const std::string shard = "model-00002-of-00002.safetensors";
  struct Damage {
    std::string file;
    std::function<void(const std::string&)> does;
  };
  const auto flip_last = [](const std::string& p) { test::flip_byte(p, InputFile(p).size() - 1); };
  const auto without = [](const std::string& name) {
    return [name](const std::string& p) {
      auto json = nlohmann::json::parse(read_text(p));
      json["files"].erase(name);
      write_text(p, json.dump());
    };
  };
  const std::vector<Damage> damages{
      {shard, flip_last},
      {shard, [](const std::string& p) { test::flip_byte(p, 0); }},
      {shard, [](const std::string& p) { test::cut(p, 1); }},
      {shard, [](const std::string& p) { remove_file(p); }},
      {"optimizer-00001-of-00002.safetensors", flip_last},
      {"run_state.json", [](const std::string& p) { test::flip_byte(p, 40); }},
      {"run_state.json", [](const std::string& p) { remove_file(p); }},
      {"model.safetensors.index.json", [](const std::string& p) { test::cut(p, 3); }},
      {"optimizer.safetensors.index.json", [](const std::string& p) { remove_file(p); }},
      {"checksums.json", [](const std::string& p) { test::cut(p, 3); }},
      {"checksums.json", [](const std::string& p) { write_text(p, "{}"); }},
      {"checksums.json", [](const std::string& p) { write_text(p, R"({"algorithm":"crc32c","files":{}})"); }},
      {"checksums.json", without("run_state.json")},
      {"checksums.json", without("model.safetensors.index.json")},
      {"checksums.json", without("optimizer-00001-of-00002.safetensors")},
      {"checksums.json", [](const std::string& p) { remove_file(p); }}};
  save(1);
  for (const auto& damage : damages) {
    save(2);
    EXPECT_EQ(latest(), place(2).folder());
    damage.does(file(2, damage.file));
    EXPECT_EQ(latest(), place(1).folder()) << damage.file;
    EXPECT_THAT(warnings_, ElementsAre(AllOf(HasSubstr("step-000002"), HasSubstr(damage.file))));
    EXPECT_THAT(test::error_of([&] { verify_checkpoint(place(2).folder()); }), HasSubstr(damage.file));
  }
}

TEST_F(Checkpoint, ThatIsCutOffIsFoundByReadersWithoutReadingItAll) {
  save(1);
  test::cut(file(1, "optimizer-00001-of-00002.safetensors"), 1);
  EXPECT_THAT(test::error_of([&] { CheckpointReader(place(1).folder()); }),
              HasSubstr("optimizer-00001-of-00002.safetensors"));
}

// Every document of a checkpoint is either read or refused by an Error, whatever its bytes.
TEST_F(Checkpoint, DocumentsDamagedAtRandomNeverCrash) {
  save(1);
  std::mt19937 random(2);
  for (const char* name : {"checksums.json", "run_state.json", "model.safetensors.index.json"}) {
    const std::string good = read_text(file(1, name));
    for (int i = 0; i < 300; ++i) {
      std::string bad = good;
      bad[random() % bad.size()] = static_cast<char>(random());
      if (i % 3 == 0) bad.erase(random() % bad.size(), 1 + random() % 30);
      remove_file(file(1, name));
      AppendFile(file(1, name)).append(bad);
      try {
        verify_checkpoint(place(1).folder());
      } catch (const Error&) {
      }
    }
    write_text(file(1, name), good);
  }
  verify_checkpoint(place(1).folder());
}

TEST_F(Checkpoint, OfAnotherNetworkIsRefusedWithTheNames) {
  save(1);
  const CheckpointReader reader(place(1).folder());
  EXPECT_NO_THROW(reader.require_model(
      {{"layer0.weight", {10, 2}}, {"layer0.count", {}}, {"layer1.weight", {10, 2}}, {"layer1.count", {}}}));
  const auto refusal = test::error_of([&] {
    reader.require_model({{"layer0.weight", {10, 3}}, {"layer0.count", {}}, {"fc.bias", {2}}, {"layer1.count", {}}});
  });
  EXPECT_THAT(refusal,
              AllOf(HasSubstr("resnet18"), HasSubstr("1 missing: fc.bias"),
                    HasSubstr("layer0.weight is [10, 2] instead of [10, 3]"), HasSubstr("1 unknown: layer1.weight")));
  EXPECT_THAT(test::error_of([&] { reader.read("layer7.weight", at::zeros({1})); }), HasSubstr("'layer7.weight'"));
  EXPECT_THAT(test::error_of([&] {
                reader.read("layer0.weight", at::zeros({2, 10}));
              }),
              AllOf(HasSubstr("'layer0.weight'"), HasSubstr("[2, 10]")));
}

TEST_F(Checkpoint, LatestIsTheOneOfTheLargestStepNotOfTheLastName) {
  EXPECT_EQ(latest(), "none");
  save(999999);
  save(1000000);
  for (const char* stranger :
       {"step-7777777x", "step-", "step--00001", "step-1234567890123456789012", "step-0002000000", "notes"})
    make_folders(path("run/" + std::string(stranger)));
  EXPECT_EQ(latest(), place(1000000).folder());
  EXPECT_THAT(place(1000000).folder(), testing::EndsWith("/step-1000000"));
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(Checkpoint, PruningKeepsTheNewestWholeOnes) {
  for (const int step : {1, 2, 3}) save(step);
  save(4, {.keep = 3});
  EXPECT_THAT(listed(), ElementsAre("step-000002", "step-000003", "step-000004"));
  test::cut(file(4, "run_state.json"), 1);  // does not count
  prune(path("run"), 2, 1000);
  EXPECT_THAT(listed(), ElementsAre("step-000002", "step-000003", "step-000004"));
  save(5, {.keep = 1});
  EXPECT_THAT(listed(), ElementsAre("step-000005"));
  EXPECT_THROW(prune(path("run"), 0, 1000), Error);
}

// The run went on from step 2, because step 9 had been damaged in a way that only its checksum shows.
TEST_F(Checkpoint, PruningDoesNotCountLaterOnesThatWerePassedOver) {
  for (const int step : {1, 2, 9}) save(step);
  save(3, {.keep = 1});
  EXPECT_THAT(listed(), ElementsAre("step-000003", "step-000009"));
}

TEST_F(Checkpoint, APathIsACheckpointOrAFolderOfThem) {
  const auto warn = [&](const std::string& warning) { warnings_.push_back(warning); };
  save(1);
  save(2);
  EXPECT_EQ(whole_checkpoint(place(1).folder(), warn), place(1).folder());
  EXPECT_EQ(whole_checkpoint(path("run"), warn), place(2).folder());
  EXPECT_THAT(test::error_of([&] { whole_checkpoint(path("nowhere"), warn); }), HasSubstr("nowhere"));
  test::cut(file(2, "run_state.json"), 1);
  EXPECT_THAT(test::error_of([&] { whole_checkpoint(place(2).folder(), warn); }), HasSubstr("damaged"));
  EXPECT_EQ(whole_checkpoint(path("run"), warn), place(1).folder());
  EXPECT_THAT(warnings_, testing::SizeIs(1));
}

TEST_F(Checkpoint, LeftoversOfKilledRunsAreRemovedAndNothingElse) {
  save(1);
  for (const char* name : {"run/.step-000002-a.part", "run/.step-000001.gone", "run/.step-000001-b.part.old"})
    make_folders(path(name));
  write_text(path("run/.step-000002-a.part/x"), "x");
  make_folders(path("run/.git"));
  write_text(path("run/metrics.jsonl"), "");
  remove_leftovers(path("run"));
  EXPECT_THAT(listed(), ElementsAre(".git", "metrics.jsonl", "step-000001"));
  EXPECT_NO_THROW(remove_leftovers(path("no such")));
}

// A child saves step after step, and is killed at any moment: what is found is always whole, and never older than what
// the child had reported.
TEST_F(Checkpoint, SurvivesKillingAtAnyMoment) {
  std::mt19937 random(3);
  const auto begin = std::chrono::steady_clock::now();
  save(1);
  // Long enough for a few of them; disks change their pace, so a round without one makes the next ones longer.
  std::chrono::duration<double> window = 4 * (std::chrono::steady_clock::now() - begin);
  std::int64_t step = 1;
  for (int round = 0; round < 20 || step <= 5; ++round) {
    const std::int64_t before = step;
    int reported[2];
    ASSERT_EQ(pipe(reported), 0);
    const pid_t child = fork();
    if (child == 0) {
      close(reported[0]);
      remove_leftovers(path("run"));
      for (std::int64_t next = step + 1;; ++next) {
        save(next, {.keep = 2});
        if (write(reported[1], &next, sizeof next) < 0) _exit(1);
      }
    }
    close(reported[1]);
    std::this_thread::sleep_for(window * (random() % 1000) / 1000);
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    while (read(reported[0], &step, sizeof step) == sizeof step) {
    }
    close(reported[0]);
    const std::string found = latest();
    ASSERT_NE(found, "none");
    EXPECT_THAT(warnings_, IsEmpty());
    const CheckpointReader reader(found);
    EXPECT_GE(reader.state().step, step);
    EXPECT_EQ(reader.model().read("layer1.count").item<std::int64_t>(), reader.state().step);
    step = reader.state().step;
    if (step == before) window *= 1.2;
  }
}

}  // namespace
}  // namespace tessera
