// The generator of random plans: what it draws, and how it makes a plan smaller.
#include <gtest/gtest.h>

#include <regex>
#include <set>
#include <sstream>

#include "child.h"
#include "draw.h"
#include "random_graph.h"
#include "shrink.h"
#include "tessera/base/error.h"

namespace tessera::plans {
namespace {

TEST(Draw, APlanDependsOnSeedAndNumberAlone) {
  const ModelRegistry models = models_with_random();
  const Flags third = draw_plan(5, 3, {}, models);
  draw_plan(5, 4, {}, models);
  EXPECT_EQ(draw_plan(5, 3, {}, models), third);
  EXPECT_NE(draw_plan(6, 3, {}, models), third);
}

// What the flags allow and the generator never draws is a gap. These are known not to be drawn.
TEST(Draw, EveryFlagOfVerifyIsDrawnSometimes) {
  const std::set<std::string> known{
      "--auto",
      "--ranks",
      "--batch-at-most",
      "--machine",
      "--plan",  // they find or name a plan of the flags that are drawn: tests/cli/auto.sh
      "--help",
      "--config",
      "--json",
      "--verbose",
      "--quiet",
      "--tolerance",  // what is printed
      "--app",
      "--datapath",
      "--class-names",
      "--on-bad-image",
      "--mean",
      "--std",  // files: tests/golden/files_test.cpp
      "--mask-values",
      "--mask-ignore",
      "--device",
      "--transport",
      "--tf32",
      "--cudnn-search",
      "--conv-choice",
      "--bind",
      "--dtype",  // GPUs, and what has too few digits
      "--num-epochs",
      "--memory-limit",  // nothing that is computed
      "--memory",
      "--host-memory",  // what they choose is drawn; the choice: tests/cli/memory.sh
      "--crop-max",     // less than all of it is --crop-min
      "--auxiliary-weight",
      "--model-output",
      "--init",  // networks of files: tests/python/import_networks.py
  };
  const ModelRegistry models = models_with_random();
  std::set<std::string> drawn;
  for (int i = 0; i < 2000; ++i)
    for (const auto& [flag, value] : draw_plan(1, i, {}, models)) drawn.insert(flag);
  const std::string help = run_child({RANDOM_PLANS, "verify", "--help"}, 60).output;
  const std::regex name("(--[A-Za-z0-9-]+)");
  int flags = 0;
  std::istringstream lines(help);
  for (std::string line; std::getline(lines, line);) {
    // A flag begins a line; elsewhere it is part of a text.
    std::smatch found;
    if (!line.starts_with("  -") || !std::regex_search(line, found, name)) continue;
    ++flags;
    EXPECT_TRUE(drawn.count(found[1]) || known.count(found[1])) << found[1] << " is never drawn";
  }
  EXPECT_GT(flags, 60) << help;
}

TEST(RandomGraph, EveryOperationIsDrawnSometimes) {
  std::set<std::string> kinds;
  for (int seed = 0; seed < 300; ++seed) {
    const Graph graph =
        random_graph({.name = "random", .image = {3, 25, 31}, .classes = 3, .depth = seed, .num_layers = 12});
    for (const Node& node : graph.nodes())
      if (node.op) kinds.emplace(node.op->kind());
  }
  for (const std::string& word : random_words())
    EXPECT_TRUE(kinds.count(word) || word == "conv_same") << word << " is never drawn";
}

TEST(RandomGraph, OneWithFewerOperationsIsTheBeginningOfOneWithMore) {
  for (int seed = 0; seed < 50; ++seed) {
    ModelOptions options{.name = "random", .image = {3, 20, 17}, .classes = 3, .depth = seed, .num_layers = 4};
    const Graph small = random_graph(options);
    options.num_layers = 9;
    const Graph large = random_graph(options);
    ASSERT_LE(small.nodes().size(), large.nodes().size());
    for (std::size_t n = 0; n < 5; ++n) EXPECT_EQ(small.nodes()[n].name, large.nodes()[n].name) << "seed " << seed;
  }
}

TEST(Shrink, FindsTheSmallestPlanThatStillFails) {
  const Flags large{{"--model", "amoebanet"}, {"--num-layers", "3"}, {"--image-size", "65x70"},
                    {"--batch-size", "12"},   {"--parts", "3"},      {"--schedule", "chimera"},
                    {"--split-size", "5"},    {"--grid", "2x2,3x1"}, {"--lr", "0.02"},
                    {"--seed", "77"}};
  int calls = 0;
  const Flags small = shrunk(
      large,
      [&](const Flags& flags) {
        ++calls;
        return flags.count("--schedule") && flags.count("--split-size") && std::stoi(flags.at("--split-size")) >= 3 &&
               std::stoi(flags.at("--image-size")) >= 20;
      },
      200);
  const Flags smallest{{"--batch-size", "1"},    {"--depth", "8"},          {"--image-size", "20x1"},
                       {"--model", "resnet_v1"}, {"--schedule", "chimera"}, {"--split-size", "3"}};
  Flags without_depth = smallest;
  without_depth.erase("--depth");
  EXPECT_EQ(small, without_depth);
  EXPECT_LE(calls, 200);
}

TEST(Child, OneThatHangsIsEndedWithAllThatItStarted) {
  const ChildResult result = run_child({"sh", "-c", "echo begun; sleep 1000 & sleep 1000"}, 0.5);
  EXPECT_TRUE(result.timed_out);
  EXPECT_EQ(result.output, "begun\n");
}

TEST(Child, WhatItReturnsAndSaysIsSeen) {
  const ChildResult result = run_child({"sh", "-c", "echo one; echo two >&2; exit 3"}, 60);
  EXPECT_EQ(result.code, 3);
  EXPECT_EQ(result.output, "one\ntwo\n");
  EXPECT_EQ(run_child({"sh", "-c", "kill -9 $$"}, 60).code, -9);
}

}  // namespace
}  // namespace tessera::plans
