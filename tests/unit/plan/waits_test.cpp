#include "tessera/plan/waits.h"

#include <gtest/gtest.h>

#include "tessera/models/registry.h"

namespace tessera {
namespace {

class WaitsTest : public testing::Test {
 protected:
  Waits waits(Recompute recompute, int micros = 1) const {
    return {graph_, stage_program(graph_, plan_, layout_, 0, recompute), layout_, 0, {0, 1, 2, 3}, 4, micros};
  }

  const Graph graph_ = builtin_models().build({.name = "resnet18", .image = {3, 128, 96}, .classes = 5});
  const Plan plan_ = make_plan(graph_, {.batch_size = 2, .turns = "2x2"});
  const Layout layout_ = make_layout(graph_, plan_);
};

TEST_F(WaitsTest, PhasesCoverEveryStepOnceEachWay) {
  const Program program = stage_program(graph_, plan_, layout_, 0, Recompute::norm);
  const Phases phases = phases_of(program, layout_, 0);
  std::size_t next = 0;
  for (const Phase& phase : phases.forward) {
    EXPECT_EQ(phase.first, next);
    next = phase.end;
  }
  EXPECT_EQ(next, program.steps.size());
  for (const Phase& phase : phases.backward) {
    EXPECT_EQ(phase.end, next);
    next = phase.first;
  }
  EXPECT_EQ(next, 0U);
  EXPECT_GT(phases.forward.size(), 20U);  // a norm ends one, and so does a margin
}

TEST_F(WaitsTest, NoMoreWaitsOnTheDeviceThanThereIsRoom) {
  for (const Recompute recompute :
       {Recompute(Recompute::none), Recompute(Recompute::norm), Recompute(Recompute::block, 2)})
    for (const int micros : {1, 3}) {
      Waits w = waits(recompute, micros);
      w.fit(Waits::unlimited);
      const double all = w.most_staying();
      EXPECT_GT(all, 0);
      EXPECT_EQ(w.bytes_moved(), 0);
      EXPECT_EQ(w.most_away(), 0);
      double moved = 0;
      for (const double share : {0.9, 0.5, 0.2, 0.0}) {
        w.fit(share * all);
        EXPECT_LE(w.most_staying(), share * all) << micros;
        EXPECT_GE(w.bytes_moved(), moved) << share;
        moved = w.bytes_moved();
      }
      EXPECT_GT(moved, 0);
    }
}

TEST_F(WaitsTest, TheFirstMembersStay) {
  Waits w = waits(Recompute::none);
  w.fit(Waits::unlimited);
  w.fit(0.5 * w.most_staying());
  int divided = 0;
  for (int v = 0; v < static_cast<int>(graph_.nodes().size()); ++v)
    for (int p = 0; p < w.phases().count(); ++p)
      for (std::size_t m = 1; m < 4; ++m) {
        EXPECT_TRUE(w.stays(Idle::value, v, p, m - 1) || !w.stays(Idle::value, v, p, m));
        divided += w.stays(Idle::value, v, p, m - 1) && !w.stays(Idle::value, v, p, m);
      }
  EXPECT_GT(divided, 0);
}

// What is made again has nothing to wait for between forward and backward.
TEST_F(WaitsTest, WhatIsMadeAgainDoesNotWaitForBackward) {
  Waits stored = waits(Recompute::none), again = waits({Recompute::block, 3});
  stored.fit(0);
  again.fit(0);
  EXPECT_LT(again.most_away(), stored.most_away());
}

}  // namespace
}  // namespace tessera
