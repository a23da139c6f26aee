// What the schedule relies on: micros do not disturb each other, weight gradients can wait, what is reported done is
// final, and nothing stays behind. That the numbers are right is for tests/golden.
#include "tessera/runtime/executor.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/sin.h>
#include <gtest/gtest.h>

#include "support/ranks.h"
#include "tessera/models/registry.h"
#include "tessera/runtime/memory.h"

namespace tessera::test {
namespace {

constexpr int micros = 3;
constexpr std::int64_t micro_size = 2;

Graph small_network() {
  return builtin_models().build({.name = "resnet_v2", .image = {3, 12, 10}, .classes = 4, .depth = 11});
}

PlanOptions whole() { return {.batch_size = micros * micro_size, .parts = micros}; }
PlanOptions stages(std::int64_t count) {
  PlanOptions options = whole();
  options.split_size = count;
  return options;
}

// One member of a stage with its parameters, fed by hand.
class Member {
 public:
  explicit Member(const PlanOptions& options, Communicator* pipeline = nullptr, Recompute recompute = Recompute::norm)
      : plan_(make_plan(graph_, options)),
        layout_(make_layout(graph_, plan_)),
        place_(plan_.places_of(pipeline ? pipeline->rank().value : 0)[0]),
        parameters_(graph_, stage().first_node, stage().end_node, at::kDouble, 1),
        executor(graph_, parameters_, {plan_, layout_, place_, pipeline}, recompute) {
    parameters_.flat_sums().zero_();
  }

  double forward(int micro) {
    const auto images = [&](const Box& box) {
      const Shape& shape = graph_.shape({0});
      return at::arange(micro_size * shape.elements(), at::kDouble)
          .add(1000 * micro)
          .mul(0.37)
          .sin()
          .reshape({micro_size, shape.channels, shape.height, shape.width})
          .narrow(2, box.height().begin, box.height().size())
          .narrow(3, box.width().begin, box.width().size())
          .contiguous(at::MemoryFormat::ChannelsLast);
    };
    PassInfo pass{.loss_terms = static_cast<double>(plan_.batch_size),
                  .labels = at::arange(micro_size, at::kLong),
                  .first_sample = micro * micro_size,
                  .statistics = {.micro = micro, .micros = micros},
                  .options = at::kDouble};
    const at::Tensor losses = executor.forward(states[static_cast<std::size_t>(micro)], micro, images, std::move(pass));
    return losses.defined() ? losses.item<double>() : 0;
  }
  void backward(int micro, bool defer = false, const Executor::WeightsDone& done = {}) {
    executor.backward(states[static_cast<std::size_t>(micro)], defer, done);
  }
  void weights(int micro, const Executor::WeightsDone& done = {}) {
    executor.weight_gradients(states[static_cast<std::size_t>(micro)], done);
  }
  void expect_values(int micro) { executor.expect_values(states[static_cast<std::size_t>(micro)], micro, at::kDouble); }
  void expect_gradients(int micro) { executor.expect_gradients(states[static_cast<std::size_t>(micro)]); }

  const Stage& stage() const { return plan_.stages[static_cast<std::size_t>(place_.stage)]; }
  const Parameters& parameters() const { return parameters_; }
  at::Tensor sums() const { return parameters_.flat_sums(); }

 private:
  // Kernels are called below autograd, as the trainer calls them.
  const at::AutoDispatchBelowADInplaceOrView no_autograd_;
  const Graph graph_ = small_network();
  const Plan plan_;
  const Layout layout_;
  const Plan::Place place_;
  Parameters parameters_;

 public:
  Executor executor;
  std::vector<MicroState> states = std::vector<MicroState>(micros);
};

at::Tensor one_after_the_other() {
  Member member(whole());
  for (int m = 0; m < micros; ++m) {
    member.forward(m);
    member.backward(m);
  }
  return member.sums();
}

TEST(Executor, MicrosThatLiveTogetherDoNotDisturbEachOther) {
  Member member(whole());
  for (int m = 0; m < micros; ++m) member.forward(m);
  for (int m = 0; m < micros; ++m) member.backward(m);
  EXPECT_TRUE(at::equal(member.sums(), one_after_the_other()));
}

TEST(Executor, WeightGradientsCanWaitForLaterMicros) {
  Member member(whole());
  for (int m = 0; m < micros; ++m) {
    member.forward(m);
    member.backward(m, /*defer=*/true);
  }
  const at::Tensor before = member.sums().clone();
  for (int m = 0; m < micros; ++m) member.weights(m);
  EXPECT_FALSE(at::equal(member.sums(), before));
  EXPECT_TRUE(at::equal(member.sums(), one_after_the_other()));
}

// Whoever takes a gradient early, as the gradient sync does, must find all of it.
void expect_final_when_reported(bool defer) {
  Member member(whole());
  for (int m = 0; m < micros; ++m) member.forward(m);
  std::vector<std::pair<int, at::Tensor>> seen;  // from which node on, and what was there
  const auto done = [&](int node) {
    const std::int64_t from = member.parameters().offset_of(node);
    seen.emplace_back(node, member.sums().narrow(0, from, member.sums().size(0) - from).clone());
  };
  for (int m = 0; m < micros; ++m) {
    const bool last = m == micros - 1;
    member.backward(m, defer, last && !defer ? done : Executor::WeightsDone());
    if (defer) member.weights(m, last ? done : Executor::WeightsDone());
  }
  ASSERT_GT(seen.size(), 5u);
  EXPECT_EQ(seen.back().first, member.stage().first_node);
  for (std::size_t i = 0; i < seen.size(); ++i) {
    const auto& [node, then] = seen[i];
    EXPECT_LE(node, seen[i > 0 ? i - 1 : 0].first);
    const at::Tensor now = member.sums().narrow(0, member.sums().size(0) - then.size(0), then.size(0));
    EXPECT_TRUE(at::equal(then, now)) << "from node " << node << " on";
  }
}

TEST(Executor, WhatIsReportedDoneIsFinal) { expect_final_when_reported(/*defer=*/false); }
TEST(Executor, WhatIsReportedDoneIsFinalWhenWeightsWait) { expect_final_when_reported(/*defer=*/true); }

TEST(Executor, ForwardKeepsWhatTheProgramSays) {
  for (const auto recompute : {Recompute::none, Recompute::norm}) {
    Member member(whole(), nullptr, recompute);
    member.forward(0);
    const Program& program = member.executor.program();
    const MemberState& state = member.states[0].members[0];
    for (std::size_t v = 0; v + 1 < state.values.size(); ++v)
      EXPECT_EQ(state.values[v].defined(), program.keep[v] == Keep::stored) << "value " << v;
  }
}

TEST(Executor, NothingOfAMicroOutlivesIt) {
  install_cpu_allocator();
  for (const bool defer : {false, true}) {
    const auto account = std::make_shared<MemoryAccount>();
    const MemoryScope scope(account);
    Member member(whole());
    member.forward(0);
    member.backward(0);  // what is made once, at first use, is there now
    const std::int64_t before = account->live_bytes();
    member.forward(1);
    EXPECT_GT(account->live_bytes(), before);
    const std::int64_t kept = account->live_bytes();
    member.backward(1, defer);
    if (defer) {
      EXPECT_GT(account->live_bytes(), before) << "what the weight gradients need";
      EXPECT_LT(account->live_bytes(), 2 * kept);
      member.weights(1);
    }
    EXPECT_EQ(account->live_bytes(), before);
  }
}

// A rank of a pipeline. `ahead`: receives are posted long before they are needed, and the last micro's first: each must
// find its own message.
at::Tensor train(Communicator& c, const PlanOptions& options, bool ahead) {
  Member member(options, &c);
  if (ahead)
    for (int m = micros - 1; m >= 0; --m) member.expect_values(m);
  for (int m = 0; m < micros; ++m) member.forward(m);
  if (ahead)
    for (int m = micros - 1; m >= 0; --m) member.expect_gradients(m);
  for (int m = 0; m < micros; ++m) member.backward(m);
  member.executor.flush();
  c.barrier();
  return member.sums();
}

TEST(Executor, ReceivesPostedAheadChangeNothing) {
  if (most_ranks(3) < 3) GTEST_SKIP() << "needs three ranks";
  on_ranks(3, [](Communicator& c) {
    const at::Tensor late = train(c, stages(3), false), early = train(c, stages(3), true);
    EXPECT_TRUE(at::equal(late, early)) << c.rank();
  });
}

// The stages of a pipeline, put together, have the gradients of the whole network.
TEST(Executor, StagesHaveTheGradientsOfTheWhole) {
  if (most_ranks(2) < 2) GTEST_SKIP() << "needs two ranks";
  on_ranks(2, [](Communicator& c) {
    Member all(whole());
    for (int m = 0; m < micros; ++m) all.forward(m);
    for (int m = 0; m < micros; ++m) all.backward(m);
    Member mine(stages(2), &c);
    for (int m = 0; m < micros; ++m) mine.forward(m);
    for (int m = 0; m < micros; ++m) mine.backward(m);
    mine.executor.flush();
    c.barrier();
    for (const Parameter& p : mine.parameters().all()) {
      const at::Tensor expected = all.parameters().at(p.name).sum;
      EXPECT_LE(p.sum.sub(expected).norm().item<double>(), 1e-12 * (1 + expected.norm().item<double>())) << p.name;
    }
  });
}

}  // namespace
}  // namespace tessera::test
