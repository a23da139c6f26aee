#include "tessera/runtime/optimizer.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera {
namespace {

TEST(LearningRate, FollowsItsSchedule) {
  EXPECT_DOUBLE_EQ(learning_rate({}, 0.5, 99, 100), 0.5);
  const LearningRateOptions step{.schedule = "step", .step_every = 10, .step_factor = 0.1};
  EXPECT_DOUBLE_EQ(learning_rate(step, 1, 9, 100), 1);
  EXPECT_DOUBLE_EQ(learning_rate(step, 1, 10, 100), 0.1);
  EXPECT_DOUBLE_EQ(learning_rate(step, 1, 25, 100), 0.01);
  const LearningRateOptions cosine{.schedule = "cosine"};
  EXPECT_DOUBLE_EQ(learning_rate(cosine, 2, 0, 100), 2);
  EXPECT_NEAR(learning_rate(cosine, 2, 50, 100), 1, 1e-12);
  EXPECT_NEAR(learning_rate(cosine, 2, 100, 100), 0, 1e-12);
}

TEST(LearningRate, RisesToItsFullHeightInTheWarmUp) {
  const LearningRateOptions warm{.schedule = "cosine", .warmup_steps = 4};
  EXPECT_DOUBLE_EQ(learning_rate(warm, 1, 0, 20), 0.25);
  EXPECT_DOUBLE_EQ(learning_rate(warm, 1, 3, 20), 1);
  EXPECT_DOUBLE_EQ(learning_rate(warm, 1, 4, 20), 1);
  EXPECT_LT(learning_rate(warm, 1, 12, 20), 1);
}

TEST(Optimizer, ClipsToTheNorm) {
  const auto values = at::zeros({2}, at::kDouble), gradients = at::tensor({3.0, 4.0}, at::kDouble);
  Optimizer optimizer({.lr = 1, .momentum = 0, .clip_norm = 1}, values, gradients);
  optimizer.clip(5);
  EXPECT_NEAR(gradients.norm().item<double>(), 1, 1e-6);
  optimizer.step(0.5);
  EXPECT_NEAR(values[1].item<double>(), -0.4, 1e-6);
}

TEST(Optimizer, ASmallGradientIsLeftAlone) {
  const auto values = at::zeros({2}, at::kDouble), gradients = at::tensor({0.3, 0.4}, at::kDouble);
  Optimizer optimizer({.clip_norm = 1}, values, gradients);
  optimizer.clip(0.5);
  EXPECT_DOUBLE_EQ(gradients[0].item<double>(), 0.3);
}

// Three steps against two, the state carried over to a new optimizer, and one.
TEST(Optimizer, AnotherOneGoesOnFromItsState) {
  for (const OptimizerOptions& options :
       {OptimizerOptions{.lr = 0.1, .weight_decay = 0.01}, OptimizerOptions{.lr = 0.1, .momentum = 0},
        OptimizerOptions{.name = "adam", .lr = 0.1},
        OptimizerOptions{.name = "adamw", .lr = 0.1, .weight_decay = 0.1}}) {
    const auto gradients = at::tensor({3.0, -4.0, 0.5}, at::kDouble);
    const auto whole = at::ones({3}, at::kDouble), parts = at::ones({3}, at::kDouble);
    Optimizer without_stop(options, whole, gradients), before(options, parts, gradients);
    for (int step = 0; step < 3; ++step) without_stop.step(0.1);
    for (int step = 0; step < 2; ++step) before.step(0.1);
    const auto then = parts.clone();
    Optimizer after(options, then, gradients);
    const auto saved = before.state();
    const auto loaded = after.state();
    ASSERT_EQ(saved.size(), loaded.size()) << options.name;
    for (std::size_t i = 0; i < saved.size(); ++i) {
      EXPECT_EQ(saved[i].name, loaded[i].name);
      loaded[i].values.copy_(saved[i].values);
    }
    after.set_steps(2);
    after.step(0.1);
    EXPECT_TRUE(at::equal(then, whole)) << options.name << " " << options.momentum;
  }
}

TEST(Optimizer, StateOfZerosIsNoState) {
  const auto gradients = at::tensor({3.0, -4.0}, at::kDouble);
  const auto values = at::ones({2}, at::kDouble), expected = at::ones({2}, at::kDouble);
  for (const char* name : {"sgd", "adam", "adamw"}) {
    Optimizer fresh({.name = name}, expected, gradients), asked({.name = name}, values, gradients);
    EXPECT_EQ(asked.state()[0].values.norm().item<double>(), 0);
    fresh.step(0.1);
    asked.step(0.1);
    EXPECT_TRUE(at::equal(values, expected)) << name;
  }
}

TEST(Optimizer, AnUnknownOneIsRefused) {
  EXPECT_THROW(Optimizer({.name = "lion"}, at::zeros({1}), at::zeros({1})), UsageError);
}

}  // namespace
}  // namespace tessera
