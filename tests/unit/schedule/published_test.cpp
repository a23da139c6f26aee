// Bubbles and live micros as the papers have them: equal stages, a backward takes as long as two forwards.
#include <gtest/gtest.h>

#include "plans.h"
#include "tessera/schedule/simulator.h"

namespace tessera {
namespace {

Simulation run(ScheduleKind kind, int stages, int parts, int times = 1) {
  const Plan plan = pipeline(kind, stages, parts, times);
  return simulate(plan, make_schedule(plan));
}

template <class F>
void for_stages_and_micros(int first_stage, const F& f) {
  for (int stages = first_stage; stages <= 8; ++stages)
    for (int micros = 1; micros <= 16; ++micros) {
      SCOPED_TRACE(testing::Message() << stages << " stages, " << micros << " micros");
      f(stages, micros);
    }
}

TEST(Published, GpipeAndOneForwardOneBackwardHaveTheSameBubble) {
  for_stages_and_micros(2, [](int stages, int micros) {
    const double bubble = (stages - 1.0) / (micros + stages - 1.0);
    EXPECT_NEAR(run(ScheduleKind::gpipe, stages, micros).idle(), bubble, 1e-12);
    EXPECT_NEAR(run(ScheduleKind::one_f_one_b, stages, micros).idle(), bubble, 1e-12);
  });
}

TEST(Published, OneStageNeverWaitsAndHoldsOneMicro) {
  for (const auto kind : all_kinds())
    for (int parts = 1; parts <= 16; ++parts) {
      const auto simulation = run(kind, 1, parts, 2);
      EXPECT_NEAR(simulation.idle(), 0, 1e-12);
      EXPECT_EQ(simulation.live_micros(), 1) << to_string(kind);
    }
}

TEST(Published, GpipeHoldsAllMicrosOneForwardOneBackwardOnlyWhatTheDepthAsksFor) {
  for_stages_and_micros(2, [](int stages, int micros) {
    const auto gpipe = run(ScheduleKind::gpipe, stages, micros);
    const auto one_f_one_b = run(ScheduleKind::one_f_one_b, stages, micros);
    for (int s = 0; s < stages; ++s) {
      EXPECT_EQ(gpipe.ranks[static_cast<std::size_t>(s)].live_micros, micros);
      EXPECT_EQ(one_f_one_b.ranks[static_cast<std::size_t>(s)].live_micros, std::min(stages - s, micros));
    }
  });
}

// ZB-H1: (stages - 1)(F + I - W) instead of (stages - 1)(F + I + W), in the memory of 1F1B's first stage.
TEST(Published, ZeroBubbleHasAThirdOfTheBubbleInNoMoreMemory) {
  for_stages_and_micros(2, [](int stages, int micros) {
    const auto zero_bubble = run(ScheduleKind::zero_bubble, stages, micros);
    const double shortest = micros >= stages ? 3 * micros + stages - 1 : 2 * (micros + stages) - 1;
    EXPECT_DOUBLE_EQ(zero_bubble.makespan, shortest);
    EXPECT_LT(zero_bubble.idle(), run(ScheduleKind::one_f_one_b, stages, micros).idle());
    EXPECT_LE(zero_bubble.live_micros(), std::min(stages, micros));
  });
}

// The bubble of GEMS is (stages - 1) / (stages + 1/2): a batch of one micro takes 2 stages + 1 when batches follow each
// other, and the first one has to get to the last stage.
TEST(Published, GemsTakesTwoBatchesInTheTimeOfItsPaper) {
  for (int stages = 2; stages <= 8; ++stages)
    for (int times = 1; times <= 4; ++times)
      EXPECT_DOUBLE_EQ(run(ScheduleKind::gems_master, stages, 1, times).makespan,
                       stages - 1 + 2 * times * (2 * stages + 1))
          << stages << " stages, times " << times;
}

TEST(Published, GemsHoldsOneBatchAndFillsTheBubblesBetweenBatches) {
  for_stages_and_micros(2, [](int stages, int parts) {
    for (int times = 1; times <= 2; ++times) {
      const auto gems = run(ScheduleKind::gems_master, stages, parts, times);
      EXPECT_LE(gems.live_micros(), parts);
      const int batches = 2 * times;
      // At most half of what GPipe holds for as many samples, and faster than the batches one after another.
      EXPECT_LE(2 * gems.live_micros(), run(ScheduleKind::gpipe, stages, batches * parts).live_micros());
      EXPECT_LT(gems.makespan, batches * run(ScheduleKind::one_f_one_b, stages, parts).makespan);
    }
  });
}

TEST(Published, GemsMastIsMasterWithOneBatchADirection) {
  for_stages_and_micros(1, [](int stages, int parts) {
    EXPECT_EQ(make_schedule(pipeline(ScheduleKind::gems_mast, stages, parts)),
              make_schedule(pipeline(ScheduleKind::gems_master, stages, parts, 1)));
  });
}

// (D - 2) / (3N/2 + D - 2) for an even number of stages D and a multiple of D micros N.
TEST(Published, ChimeraHasAtMostTheBubbleOfItsPaper) {
  for (int stages = 2; stages <= 8; stages += 2)
    for (int micros = stages; micros <= 32; micros += stages)
      EXPECT_LE(run(ScheduleKind::chimera, stages, micros).idle(), (stages - 2) / (1.5 * micros + stages - 2) + 1e-12)
          << stages << " stages, " << micros << " micros";
}

// The paper has even numbers only. With odd ones the middle rank is in the same stage both ways.
TEST(Published, ChimeraWithAnOddNumberOfStagesWaitsLittleMore) {
  for (int stages = 3; stages <= 7; stages += 2)
    for (int micros = stages + 1; micros <= 32; ++micros)
      EXPECT_LE(run(ScheduleKind::chimera, stages, micros).makespan, 3 * micros + 2 * (stages - 2) + 1)
          << stages << " stages, " << micros << " micros";
}

TEST(Published, ChimeraWaitsLessThanOneForwardOneBackward) {
  for_stages_and_micros(2, [](int stages, int micros) {
    const auto chimera = run(ScheduleKind::chimera, stages, micros);
    const auto one_f_one_b = run(ScheduleKind::one_f_one_b, stages, micros);
    if (micros == 1) {
      EXPECT_DOUBLE_EQ(chimera.makespan, one_f_one_b.makespan) << "there is nothing to run up";
    } else {
      EXPECT_LT(chimera.makespan, one_f_one_b.makespan);
    }
    EXPECT_LE(chimera.live_micros(), std::min(stages + 1, micros));
  });
}

TEST(Published, ChimeraCutsTheBubbleOfManyMicrosByAThirdOrMore) {
  for (int stages = 2; stages <= 8; stages += 2) {
    const int micros = 4 * stages;
    EXPECT_LE(run(ScheduleKind::chimera, stages, micros).idle(),
              0.65 * run(ScheduleKind::one_f_one_b, stages, micros).idle());
  }
}

}  // namespace
}  // namespace tessera
