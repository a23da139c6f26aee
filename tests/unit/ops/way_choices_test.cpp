#include "tessera/ops/way_choices.h"

#include <gtest/gtest.h>

#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <set>

#include "tessera/base/error.h"

namespace tessera {
namespace {

// A file that is gone afterwards.
struct TemporaryFile {
  const std::string path = concat(testing::TempDir(), "/tessera_ways_", getpid());
  ~TemporaryFile() { std::remove(path.c_str()); }
};

TEST(WayChoices, AreRememberedInAFile) {
  const TemporaryFile temporary;
  const std::string& file = temporary.path;
  WayChoices first("measured", file), beside("measured", file);
  EXPECT_FALSE(first.find("a"));
  first.remember("a", {"direct", 8});
  first.save();
  beside.remember("b", {"product", 8});  // knows nothing of a yet, and must not lose it
  beside.save();
  WayChoices later("measured", file);
  EXPECT_EQ(later.find("a")->name, "direct");
  EXPECT_EQ(later.find("a")->scratch_bytes, 8);
  EXPECT_EQ(later.find("b")->name, "product");
}

TEST(WayChoices, AProcessDoesNotChangeItsMindWhenItSaves) {
  const TemporaryFile temporary;
  const std::string& file = temporary.path;
  WayChoices first("measured", file), beside("measured", file);
  first.remember("a", {"direct", 8});
  first.save();
  beside.remember("a", {"product", 8});
  beside.save();
  EXPECT_EQ(first.find("a")->name, "direct");
  EXPECT_EQ(beside.find("a")->name, "product");
}

TEST(WayChoices, WhatAnotherProcessHasFoundTakesThePlaceOfWhatThisOneKnows) {
  WayChoices measuring("measured", ""), waiting("measured", "");
  measuring.remember("a", {"direct", 8});
  waiting.remember("a", {"product", 8});
  waiting.remember("b", {"product", 8});
  waiting.learn(measuring.lines());
  EXPECT_EQ(waiting.find("a")->name, "direct");
  EXPECT_FALSE(waiting.find("b")) << "the others go by the rules there, too";
}

TEST(WayChoices, WhatCannotBeReadIsNotThere) {
  const TemporaryFile temporary;
  const std::string& file = temporary.path;
  std::ofstream(file) << "no tab\n\t\n\n" << std::string(10000, 'x') << "\na\tnonsense\t8\na\tdirect\na\tdirect\tx\na\tdirect\tinf\na\tdirect\t-1\n";
  WayChoices choices("measured", file);
  EXPECT_EQ(choices.lines(), "");
  choices.remember("a", {"direct", 8});
  choices.save();
  EXPECT_EQ(WayChoices("measured", file).find("a")->name, "direct");

  WayChoices nowhere("measured", "/no/such/folder/ways");
  nowhere.remember("a", {"direct", 8});
  nowhere.save();
  EXPECT_EQ(nowhere.find("a")->name, "direct");
}

TEST(WayChoices, DrawnOnesFollowFromTheSeedAndTheShapeAlone) {
  const std::vector<std::function<void()>> none(4);  // nothing is run
  const WayChoices one("drawn:1", ""), again("drawn:1", ""), other("drawn:2", "");
  int different = 0;
  std::set<std::size_t> seen;
  for (int i = 0; i < 40; ++i) {
    const std::string shape = concat("shape ", i);
    const std::size_t way = one.pick(shape, none, 1);
    seen.insert(way);
    EXPECT_EQ(way, again.pick(shape, none, 1));
    if (way != other.pick(shape, none, 1)) ++different;
  }
  EXPECT_EQ(seen, (std::set<std::size_t>{0, 1, 2, 3}));
  EXPECT_GT(different, 10);
  EXPECT_TRUE(one.measured());
  EXPECT_THROW(WayChoices("drawn:", ""), UsageError);
  EXPECT_THROW(WayChoices("drawn:1x", ""), UsageError);
}

TEST(WayChoices, AWordThatMeansNothingIsRefused) {
  EXPECT_TRUE(WayChoices("", "").fixed());
  EXPECT_FALSE(WayChoices("fixed", "").find("a"));
  EXPECT_EQ(WayChoices("blocked", "").find("a")->name, "blocked");
  EXPECT_THROW(WayChoices("quick", ""), UsageError);
}

TEST(WayChoices, TheFirstWayStaysUnlessAnotherIsClearlyFaster) {
  const auto work = [](int rounds) {
    return [rounds] {
      volatile double x = 1;
      for (int i = 0; i < rounds; ++i) x = x * 1.0000001;
    };
  };
  EXPECT_EQ(fastest({work(2'000'000), work(20'000), work(2'000'000)}, 1), 1U);
  EXPECT_EQ(fastest({work(20'000), work(2'000'000)}, 1), 0U);
}

}  // namespace
}  // namespace tessera
