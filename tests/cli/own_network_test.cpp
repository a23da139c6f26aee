// Networks that somebody got wrong: each gets one message that says what to change, before anything trains.
#include <gmock/gmock.h>

#include "tessera/app/program.h"

namespace tessera {
namespace {

using testing::HasSubstr;
using testing::Not;

Value trunk(Graph& g, const ModelOptions& options, const std::string& name) {
  g.cell("all");
  return g.relu(g.conv(g.input(options.image), {.out = 4, .kernel = 3, .pad = 1}, name));
}

struct Outcome {
  int code;
  std::string errors;
};

Outcome trained(const ModelBuilder& build) {
  ModelRegistry models = builtin_models();
  models.add("mine", {"a network of one's own", {}, build});
  std::vector<std::string> words{"tessera", "train",   "--model",      "mine", "--num-classes", "3", "--steps",
                                 "1",       "--quiet", "--batch-size", "2"};
  std::vector<char*> arguments;
  for (auto& word : words) arguments.push_back(word.data());
  testing::internal::CaptureStderr();
  const int code = run_program(static_cast<int>(arguments.size()), arguments.data(), models);
  return {code, testing::internal::GetCapturedStderr()};
}

TEST(OwnNetwork, ThatIsWellTrains) {
  const Outcome outcome = trained([](const ModelOptions& options) {
    Graph g;
    g.cross_entropy(g.linear(g.global_avg_pool(trunk(g, options, "conv")), {.out = options.classes}, "head"));
    return g;
  });
  EXPECT_EQ(outcome.code, 0) << outcome.errors;
}

TEST(OwnNetwork, WithoutALossIsRefused) {
  const Outcome outcome = trained([](const ModelOptions& options) {
    Graph g;
    g.linear(g.global_avg_pool(trunk(g, options, "conv")), {.out = options.classes}, "head");
    return g;
  });
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.errors, HasSubstr("'head'"));
  EXPECT_THAT(outcome.errors, HasSubstr("g.cross_entropy"));
}

TEST(OwnNetwork, WhoseHeadIsTooWideIsRefusedWithBothNumbers) {
  const Outcome outcome = trained([](const ModelOptions& options) {
    Graph g;
    g.cross_entropy(g.linear(g.global_avg_pool(trunk(g, options, "conv")), {.out = 7}, "head"));
    return g;
  });
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.errors, HasSubstr("7 classes"));
  EXPECT_THAT(outcome.errors, HasSubstr("--num-classes is 3"));
}

TEST(OwnNetwork, WithANameTwiceIsRefusedAndNotAnInternalError) {
  const Outcome outcome = trained([](const ModelOptions& options) {
    Graph g;
    const Value x = trunk(g, options, "conv");
    g.cross_entropy(g.linear(g.global_avg_pool(g.conv(x, {.out = 4}, "conv")), {.out = options.classes}, "head"));
    return g;
  });
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.errors, HasSubstr("called 'conv'"));
  EXPECT_THAT(outcome.errors, Not(HasSubstr("internal")));
}

}  // namespace
}  // namespace tessera
