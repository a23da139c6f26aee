#include "tessera/runtime/cores.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <thread>

namespace tessera {
namespace {

using Processors = std::vector<int>;

// The nodes that each rank keeps to; "-": none, "*": none, but all processors.
std::string picture(const NumaNodes& machine, int ranks, int threads, int has = 1 << 10) {
  std::string out;
  for (const Cores& cores : cores_of_ranks(machine, ranks, threads, has)) {
    if (!out.empty()) out += " ";
    for (const int node : cores.nodes) out += std::to_string(node);
    if (cores.nodes.empty()) out += cores.processors.empty() ? "-" : "*";
  }
  return out;
}

const NumaNodes two{{0, 1, 2, 3}, {4, 5, 6, 7}};
const NumaNodes four{{0, 1}, {2, 3}, {4, 5}, {6, 7}};

TEST(Cores, RanksShareTheNodesEvenlyNeighboursTogether) {
  EXPECT_EQ(picture(two, 2, 4), "0 1");
  EXPECT_EQ(picture(two, 4, 2), "0 0 1 1");
  EXPECT_EQ(picture(two, 3, 2), "0 0 1");
  EXPECT_EQ(picture(two, 8, 1), "0 0 0 0 1 1 1 1");
  EXPECT_EQ(picture(four, 2, 4), "01 23");
  EXPECT_EQ(picture(four, 4, 2), "0 1 2 3");
}

TEST(Cores, ARankHasTheProcessorsOfItsNodes) {
  const auto cores = cores_of_ranks(four, 2, 3, 8);
  EXPECT_EQ(cores[0].processors, (Processors{0, 1, 2, 3}));
  EXPECT_EQ(cores[1].processors, (Processors{4, 5, 6, 7}));
}

TEST(Cores, NobodyIsBoundWhereSomebodyWouldBeShortOfCores) {
  EXPECT_EQ(picture(two, 1, 8), "-");              // one rank for the whole machine
  EXPECT_EQ(picture({{0, 1, 2}}, 3, 1), "- - -");  // one node
  EXPECT_EQ(picture(two, 2, 8), "- -");            // stages that take turns
  EXPECT_EQ(picture(two, 3, 3), "- - -");          // 6 threads for the 4 cores of node 0
  EXPECT_EQ(picture({}, 2, 1), "- -");             // nothing is known
  EXPECT_EQ(picture({{0, 1, 2}, {3}}, 2, 2), "- -");
}

TEST(Cores, ALauncherThatLeftFewerThanTheThreadsIsOverruled) {
  EXPECT_EQ(picture({{0, 1, 2, 3}}, 2, 2, 1), "* *");
  EXPECT_EQ(picture({{0, 1, 2, 3}}, 2, 2, 2), "- -");
  EXPECT_EQ(picture(two, 2, 4, 1), "0 1");
}

TEST(Cores, WithinIsWhatTheUserLeft) {
  EXPECT_EQ(within(two, Processors{1, 2, 5}), (NumaNodes{{1, 2}, {5}}));
  EXPECT_EQ(within(two, Processors{4, 6}), (NumaNodes{{4, 6}}));
}

TEST(Cores, AThreadKeepsToItsProcessorsAndSoDoThoseItStarts) {
  const Processors all = processors_of_thread();
  ASSERT_FALSE(all.empty());
  if (hwloc_version().starts_with("no")) {
    EXPECT_FALSE(keep_to({.processors = {all.back()}}));
    return;
  }
  std::thread([&] {
    EXPECT_TRUE(keep_to({.processors = {all.back()}, .nodes = {0}}));
    EXPECT_EQ(processors_of_thread(), Processors{all.back()});
    std::thread([&] { EXPECT_EQ(processors_of_thread(), Processors{all.back()}); }).join();
    keep_to({});
    EXPECT_EQ(processors_of_thread(), Processors{all.back()});
  }).join();
  EXPECT_EQ(processors_of_thread(), all);
}

TEST(Cores, WhatIsDoneApartLeavesTheCallerWhereItIs) {
  const Processors before = processors_of_thread();
  const auto other = std::this_thread::get_id();
  apart({.processors = {before.back()}}, [&] {
    EXPECT_NE(std::this_thread::get_id(), other);
    EXPECT_TRUE(hwloc_version().starts_with("no") || processors_of_thread() == Processors{before.back()});
  });
  EXPECT_EQ(processors_of_thread(), before);
  EXPECT_THROW(apart({}, [] { throw std::runtime_error("as it is"); }), std::runtime_error);
}

}  // namespace
}  // namespace tessera
