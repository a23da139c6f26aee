#include "tessera/base/error.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

template <class Exception, class Action>
std::string message_of(Action action) {
  try {
    action();
  } catch (const Exception& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(Problems, NothingIsThrownWhenNothingIsWrong) {
  Problems problems;
  problems.check(true, "not this");
  EXPECT_TRUE(problems.empty());
  EXPECT_NO_THROW(problems.throw_if_any());
}

TEST(Problems, OneProblemIsTheWholeMessage) {
  Problems problems;
  problems.check(3 > 4, "--rows ", 3, " is less than ", 4);
  EXPECT_EQ(message_of<UsageError>([&] { problems.throw_if_any(); }), "--rows 3 is less than 4");
}

TEST(Problems, SeveralProblemsAreCountedAndStandOnLinesOfTheirOwn) {
  Problems problems;
  problems.add("first");
  problems.check(true, "not this");
  problems.check(false, "second is ", 2.5);
  EXPECT_EQ(problems.list().size(), 2u);
  EXPECT_EQ(message_of<UsageError>([&] { problems.throw_if_any(); }), "2 problems:\n  - first\n  - second is 2.5");
}

TEST(Problems, AbsorbTakesInEveryProblemOfAUsageErrorAndGoesOn) {
  Problems inner, outer;
  inner.add("first");
  inner.add("second");
  outer.absorb([&] { inner.throw_if_any(); });
  outer.absorb([] { require(false, "third"); });
  outer.absorb([] {});
  EXPECT_EQ(outer.list(), (std::vector<std::string>{"first", "second", "third"}));
  EXPECT_THROW(outer.absorb([] { ensure(false, "not the user's"); }), Error);
}

TEST(Require, ThrowsAUsageErrorWithTheValuesWhenTheConditionFails) {
  EXPECT_NO_THROW(require(true, "fine"));
  EXPECT_EQ(message_of<UsageError>([] { require(false, "height ", 3, " < ", 5); }), "height 3 < 5");
}

TEST(Ensure, ThrowsAnInternalErrorThatIsNotTheUsersFault) {
  EXPECT_NO_THROW(ensure(true, "fine"));
  EXPECT_EQ(message_of<Error>([] { ensure(false, "rank ", 7); }), "internal error: rank 7");
  try {
    ensure(false, "");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::failure);
  }
}

TEST(Error, EachKindHasItsExitCode) {
  EXPECT_EQ(Error("").code(), ExitCode::failure);
  EXPECT_EQ(UsageError("").code(), ExitCode::usage);
  EXPECT_EQ(NumericError("").code(), ExitCode::numeric);
  EXPECT_EQ(static_cast<int>(ExitCode::failure), 1);
  EXPECT_EQ(static_cast<int>(ExitCode::usage), 2);
  EXPECT_EQ(static_cast<int>(ExitCode::numeric), 3);
}

}  // namespace
}  // namespace tessera
