#include "tessera/runtime/scores.h"

#include <gtest/gtest.h>

#include <limits>

namespace tessera {
namespace {

// label 0: 3 right, 1 taken for 1; label 1: 2 right, 2 taken for 2; label 2: none; class 3: neither.
Confusion example() {
  Confusion c(4);
  c.add(0, 0, 3);
  c.add(0, 1);
  c.add(1, 1);
  c.add(1, 1);
  c.add(1, 2, 2);
  return c;
}

TEST(Confusion, CountsByLabelAndPrediction) {
  const Confusion c = example();
  EXPECT_EQ(c.count(0, 1), 1);
  EXPECT_EQ(c.count(1, 0), 0);
  EXPECT_EQ(c.count(1, 2), 2);
  EXPECT_EQ(c.total(), 8);
}

TEST(Confusion, AccuracyIsTheShareOnTheDiagonal) { EXPECT_DOUBLE_EQ(example().accuracy().value(), 5.0 / 8); }

TEST(Confusion, RecallIsOfTheLabelledOnes) {
  EXPECT_DOUBLE_EQ(example().recall(0).value(), 3.0 / 4);
  EXPECT_DOUBLE_EQ(example().recall(1).value(), 2.0 / 4);
  EXPECT_FALSE(example().recall(2)) << "nothing has this label";
}

TEST(Confusion, IouIsOverAllThatIsOfTheClassOrWasTakenForIt) {
  EXPECT_DOUBLE_EQ(example().iou(0).value(), 3.0 / 4);
  EXPECT_DOUBLE_EQ(example().iou(1).value(), 2.0 / 5);
  EXPECT_DOUBLE_EQ(example().iou(2).value(), 0);
  EXPECT_FALSE(example().iou(3)) << "neither a label nor a prediction";
  EXPECT_DOUBLE_EQ(example().mean_iou().value(), (3.0 / 4 + 2.0 / 5 + 0) / 3);
}

TEST(Confusion, OfNothingHasNoScores) {
  const Confusion c(3);
  EXPECT_FALSE(c.accuracy());
  EXPECT_FALSE(c.recall(0));
  EXPECT_FALSE(c.mean_iou());
}

std::optional<double> auc(const std::vector<double>& scores, const std::vector<std::int64_t>& labels) {
  return area_under_curve(scores, labels);
}

TEST(AreaUnderCurve, IsOneWhenAllOnesAreAbove) { EXPECT_DOUBLE_EQ(auc({0.9, 0.1, 0.8, 0.3}, {1, 0, 1, 0}).value(), 1); }
TEST(AreaUnderCurve, IsZeroWhenAllOnesAreBelow) { EXPECT_DOUBLE_EQ(auc({-2, 5, 7}, {1, 0, 0}).value(), 0); }
TEST(AreaUnderCurve, IsAHalfWhenScoresAreEqual) { EXPECT_DOUBLE_EQ(auc({1, 1, 1, 1}, {1, 0, 1, 0}).value(), 0.5); }

// Pairs of a 1 and a 0: (3, 1) above, (3, 3) equal, (2, 1) above, (2, 3) below.
TEST(AreaUnderCurve, CountsPairsAndHalvesOfEqualOnes) {
  EXPECT_DOUBLE_EQ(auc({3, 1, 2, 3}, {1, 0, 1, 0}).value(), 2.5 / 4);
}

TEST(AreaUnderCurve, NeedsBothClassesAndNumbers) {
  EXPECT_FALSE(auc({1, 2}, {1, 1}));
  EXPECT_FALSE(auc({1, 2}, {0, 0}));
  EXPECT_FALSE(auc({}, {}));
  EXPECT_FALSE(auc({1, std::numeric_limits<double>::quiet_NaN()}, {0, 1}));
}

}  // namespace
}  // namespace tessera
