#include "tessera/io/background_writer.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <barrier>
#include <thread>

#include "support/scratch.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class InBackground : public test::ScratchFolder {
 protected:
  BackgroundWriter::Options options(int shard = 0, int shards = 1) const {
    return {.dir = path("run"), .shard = shard, .shards = shards, .run = "test"};
  }
  static SaveRequest request(std::int64_t step, int shard = 0, std::int64_t elements = 100) {
    SaveRequest r{.step = step,
                  .contents = {.model = {{"w" + std::to_string(shard), at::full({elements}, step, at::kFloat)}}}};
    if (shard == 0) r.state = RunState{.step = step};
    return r;
  }
  std::string latest() const {
    return find_latest(path("run"), [](const std::string& w) { ADD_FAILURE() << w; }).value_or("none");
  }
};

TEST_F(InBackground, TensorsAreSavedAsTheyWereWhenSaveWasCalled) {
  BackgroundWriter writer(options());
  SaveRequest r = request(1, 0, 1'000'000);
  r.contents.model.push_back({"turned", at::full({4, 3, 5, 5}, 2.).contiguous(at::MemoryFormat::ChannelsLast)});
  r.contents.model[1].tensor[1][2][3][4] = 7;
  writer.save(r);
  for (auto& t : r.contents.model) t.tensor.fill_(-1);
  writer.wait();
  EXPECT_FALSE(writer.busy());
  const CheckpointReader reader(latest());
  EXPECT_TRUE(at::equal(reader.model().read("w0"), at::full({1'000'000}, 1.f)));
  EXPECT_EQ(reader.model().read("turned")[1][2][3][4].item<double>(), 7);
}

TEST_F(InBackground, RanksSaveTogetherWithoutTalking) {
  constexpr int ranks = 3;
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      BackgroundWriter writer(options(rank, ranks));
      for (std::int64_t step = 1; step <= 5; ++step) {
        std::this_thread::sleep_for(std::chrono::milliseconds(rank * 5));
        writer.save(request(step, rank));
        writer.poll();
      }
      writer.wait();
    });
  threads.clear();
  EXPECT_THAT(list_folder(path("run")), testing::SizeIs(5));
  const CheckpointReader reader(latest());
  EXPECT_EQ(reader.state().step, 5);
  for (const char* name : {"w0", "w1", "w2"}) EXPECT_EQ(reader.model().read(name)[0].item<float>(), 5);
}

TEST_F(InBackground, AnErrorIsThrownOnceByTheNextCall) {
  BackgroundWriter writer(options());
  writer.save(request(1));
  writer.wait();
  {
    const test::FullDisk full(4000);
    writer.save(request(2, 0, 5000));
    while (writer.busy()) std::this_thread::yield();
  }
  EXPECT_THAT(test::error_of([&] { writer.poll(); }),
              AllOf(HasSubstr("model-00001-of-00001"), HasSubstr("free some space")));
  EXPECT_NO_THROW(writer.poll());
  EXPECT_NO_THROW(writer.wait());
  EXPECT_THAT(list_folder(path("run")), ElementsAre("step-000001"));
  writer.save(request(3));
  writer.wait();
  EXPECT_EQ(CheckpointReader(latest()).state().step, 3);
}

TEST_F(InBackground, SaveThrowsTheErrorOfTheOneBeforeAndStartsNothing) {
  BackgroundWriter writer(options());
  {
    const test::FullDisk full(4000);
    writer.save(request(2, 0, 5000));
    while (writer.busy()) std::this_thread::yield();
  }
  EXPECT_THROW(writer.save(request(3)), Error);
  EXPECT_FALSE(writer.busy());
  EXPECT_EQ(latest(), "none");
  writer.save(request(3));  // the caller has decided to go on
  writer.wait();
  EXPECT_EQ(CheckpointReader(latest()).state().step, 3);
}

TEST_F(InBackground, RankZeroHearsOfAnotherRanksErrorAndClearsUp) {
  BackgroundWriter first(options(0, 2)), second(options(1, 2));
  {
    const test::FullDisk full(4000);
    second.save(request(1, 1, 5000));
    while (second.busy()) std::this_thread::yield();
  }
  first.save(request(1));
  EXPECT_THAT(test::error_of([&] { first.wait(); }),
              AllOf(HasSubstr("shard 2 of 2 failed"), HasSubstr("free some space")));
  EXPECT_THAT(test::error_of([&] { second.wait(); }), HasSubstr("free some space"));
  EXPECT_THAT(list_folder(path("run")), IsEmpty());
  // The same step again, as at the end of a run.
  second.save(request(1, 1));
  first.save(request(1));
  first.wait();
  EXPECT_EQ(CheckpointReader(latest()).state().step, 1);
}

TEST_F(InBackground, ARankThatIsAheadWithASecondAttemptDoesNotMendTheFirst) {
  BackgroundWriter first(options(0, 2)), second(options(1, 2));
  {
    const test::FullDisk full(4000);
    second.save(request(1, 1, 5000));
    EXPECT_THROW(second.wait(), Error);
  }
  second.save(request(1, 1));
  second.wait();
  first.save(request(1));
  EXPECT_THAT(test::error_of([&] { first.wait(); }), HasSubstr("shard 2 of 2 failed"));
  first.save(request(1));
  first.wait();
  EXPECT_EQ(CheckpointReader(latest()).state().step, 1);
}

TEST_F(InBackground, RankZerosOwnErrorIsTheOneThatIsThrown) {
  BackgroundWriter first(options(0, 2)), second(options(1, 2));
  {
    const test::FullDisk full(4000);
    first.save(request(1, 0, 5000));
    second.save(request(1, 1));
    while (first.busy()) std::this_thread::yield();
  }
  EXPECT_THAT(test::error_of([&] { first.wait(); }),
              AllOf(HasSubstr("no checkpoint of step 1"), HasSubstr(": could not write")));
  EXPECT_NO_THROW(second.wait());
  EXPECT_THAT(list_folder(path("run")), IsEmpty());
}

TEST_F(InBackground, AFolderThatCannotBeMadeIsAnErrorAtOnce) {
  write_text(path("run"), "a file");
  BackgroundWriter writer(options(0, 2));  // the other rank fails, too, and never comes
  writer.save(request(1));
  EXPECT_THAT(test::error_of([&] { writer.wait(); }), HasSubstr(path("run")));
}

TEST_F(InBackground, ADiskWithoutRoomForOneByteIsAnErrorAtOnce) {
  BackgroundWriter first(options(0, 2)), second(options(1, 2));
  const auto begin = std::chrono::steady_clock::now();
  {
    const test::FullDisk full(0);
    second.save(request(1, 1));
    first.save(request(1));
    EXPECT_THAT(test::error_of([&] { first.wait(); }), HasSubstr("free some space"));
    EXPECT_THAT(test::error_of([&] { second.wait(); }), HasSubstr("free some space"));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(60));
  EXPECT_THAT(list_folder(path("run")), IsEmpty());
}

TEST_F(InBackground, ARankThatEndsDoesNotWaitLongForOthersThatMayHaveEnded) {
  const auto begin = std::chrono::steady_clock::now();
  auto o = options(0, 2);
  o.finish.hurried_seconds = 0.05;
  { BackgroundWriter(o).save(request(1)); }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(60));
  EXPECT_EQ(latest(), "none");
  // But for what it writes itself it does.
  { BackgroundWriter(options()).save(request(2)); }
  EXPECT_EQ(CheckpointReader(latest()).state().step, 2);
}

}  // namespace
}  // namespace tessera
