// Tensors on GPUs between ranks that talk through the host. On a CPU (the default) everything is passed on, which must
// change nothing; TESSERA_TEST_DEVICE=cuda tests the copies and their order.
#include "tessera/comm/staging.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <thread>

#include "support/device.h"
#include "support/ranks.h"
#include "tessera/comm/nccl/nccl_communicator.h"

namespace tessera {
namespace {

at::TensorOptions of(at::ScalarType dtype) { return at::TensorOptions().dtype(dtype).device(test::device()); }

// Keeps the GPU busy for a while, so that what is queued behind it has not happened when the host goes on.
void keep_busy() {
  at::Tensor a = at::rand({1024, 1024}, of(at::kFloat));
  const int products = test::device() == at::kCUDA ? 200 : 1;
  for (int i = 0; i < products; ++i) a = a.matmul(a).div_(512);
}

// With all others, where its transport cares.
Communicator& connected(Communicator& world) {
  std::set<Rank> all;
  for (int r = 0; r < world.size(); ++r)
    if (r != world.rank().value) all.insert(Rank{r});
  world.connect(all);
  return world;
}

void on_staged_ranks(int ranks, const std::function<void(Communicator&)>& body) {
  for (const MessageMemory memory : {MessageMemory::pinned, MessageMemory::gpu})
    test::on_ranks(test::most_ranks(ranks), [&](Communicator& world) {
      // Processes are staged already, as their library allows.
      if (!test::ranks_are_threads()) return body(connected(world));
      body(*staged(world.split(0, world.rank().value), memory));
    });
}

Rank neighbour(const Communicator& world, int steps) {
  return Rank{(world.rank().value + steps + world.size()) % world.size()};
}

// A part of a larger tensor, channels last, with room around it.
at::Tensor strip(double first) {
  at::Tensor whole = at::zeros({2, 3, 20, 17}, of(at::kDouble)).contiguous(at::MemoryFormat::ChannelsLast);
  at::Tensor part = whole.narrow(2, 4, 5).narrow(3, 2, 9);
  keep_busy();
  part.copy_(at::arange(2 * 3 * 5 * 9, of(at::kDouble)).view({2, 3, 5, 9}).add(first));
  return part;
}

TEST(Staging, StripsArriveAndSumsAreMadeOfWhatTheStreamHeld) {
  on_staged_ranks(3, [](Communicator& world) {
    for (int round = 0; round < 3; ++round) {
      const Rank to = neighbour(world, 1), from = neighbour(world, -1);
      const at::Tensor mine = strip(1000 * world.rank().value + round), into = strip(-1);
      at::Tensor sum = mine.clone();
      Pending sent = world.send(mine, to, Tag{round}), received = world.receive(into, from, Tag{round});
      Pending summed = world.all_reduce(sum);
      received.wait();
      sent.wait();
      mine.zero_();  // is ours again
      EXPECT_TRUE(into.equal(strip(1000 * from.value + round)));
      summed.wait();
      at::Tensor expected = strip(round);
      for (int r = 1; r < world.size(); ++r) expected = expected.add(strip(1000 * r + round));
      EXPECT_TRUE(sum.allclose(expected, 1e-14));
    }
  });
}

TEST(Staging, MessagesOfOneTagKeepTheirOrderAndTagsMayCross) {
  on_staged_ranks(2, [](Communicator& world) {
    if (world.size() < 2 || world.rank().value > 1) return;
    const Rank other{1 - world.rank().value};
    std::vector<Pending> pending;
    std::vector<at::Tensor> into;
    for (const int tag : {5, 4, 5})
      pending.push_back(world.receive(into.emplace_back(at::empty({7}, of(at::kFloat))), other, Tag{tag}));
    keep_busy();
    for (const int value : {1, 2, 3})
      pending.push_back(world.send(at::full({7}, value, of(at::kFloat)), other, Tag{value == 2 ? 4 : 5}));
    while (!pending[2].test()) continue;  // of the last message, though the others come first
    for (Pending& p : pending) p.wait();
    EXPECT_EQ(into[0][0].item<float>(), 1);
    EXPECT_EQ(into[1][0].item<float>(), 2);
    EXPECT_EQ(into[2][0].item<float>(), 3);
  });
}

// What one rank sends another: of several lengths and tags.
struct Letter {
  Tag tag;
  std::int64_t length;
  double value;
};
std::vector<Letter> letters(Rank from, Rank to) {
  std::mt19937 random(static_cast<unsigned>(10 * from.value + to.value));
  std::vector<Letter> out;
  for (int i = 0; i < 30; ++i) {
    const int length = static_cast<int>(random() % 5 == 0 ? 300000 : 1 + random() % 900);
    out.push_back({Tag{static_cast<int>(random() % 3)}, length, 1000.0 * from.value + i});
  }
  return out;
}

// Half of the receives come before the sends and half after them, tag by tag in the order of the letters, otherwise in
// any; and two groups of the same ranks, which number them differently, use the same tags.
TEST(Staging, LettersOfManyTagsArriveInAnyOrder) {
  on_staged_ranks(3, [](Communicator& world) {
    const auto reversed = world.split(0, -world.rank().value);
    for (Communicator* group : {&world, &connected(*reversed)}) ASSERT_EQ(group->size(), world.size());
    const auto number = [&](int group, int r) { return Rank{group == 0 ? r : world.size() - 1 - r}; };
    const auto in = [&](int group) -> Communicator& { return group == 0 ? world : *reversed; };
    struct Expected {
      at::Tensor into;
      double value;
    };
    std::vector<Expected> expected;
    std::vector<Pending> pending;
    std::mt19937 random(static_cast<unsigned>(world.rank().value));
    const auto receive = [&](int tag) {
      for (int group = 0; group < 2; ++group)
        for (int r = 0; r < world.size(); ++r)
          for (const Letter& letter : letters(Rank{r}, world.rank())) {
            if (r == world.rank().value || letter.tag != Tag{tag}) continue;
            expected.push_back({at::zeros({letter.length}, of(at::kFloat)), letter.value + 0.5 * group});
            pending.push_back(in(group).receive(expected.back().into, number(group, r), letter.tag));
          }
    };
    receive(2);
    for (int i = 0; i < 30; ++i)
      for (int r = 0; r < world.size(); ++r) {
        if (r == world.rank().value) continue;
        const Letter letter = letters(world.rank(), Rank{r})[static_cast<std::size_t>(i)];
        if (i % 10 == 0) keep_busy();
        for (int group = 0; group < 2; ++group)
          pending.push_back(in(group).send(at::full({letter.length}, letter.value + 0.5 * group, of(at::kFloat)),
                                           number(group, r), letter.tag));
      }
    receive(0);
    receive(1);
    std::shuffle(pending.begin(), pending.end(), random);
    for (Pending& p : pending) p.wait();
    for (const Expected& e : expected) EXPECT_TRUE(e.into.eq(e.value).all().item<bool>()) << e.value;
  });
}

// Rank 0 waits for an answer to a message that it has only queued, and does not look at that message itself.
TEST(Staging, WaitingForOneThingSendsTheOthers) {
  on_staged_ranks(2, [](Communicator& world) {
    if (world.size() < 2 || world.rank().value > 1) return;
    const at::Tensor question = at::full({100}, 3, of(at::kDouble)), answer = at::zeros({100}, of(at::kDouble));
    if (world.rank() == Rank{0}) {
      keep_busy();
      Pending asked = world.send(question.add(1), Rank{1}, Tag{1});
      world.receive(answer, Rank{1}, Tag{2}).wait();
      EXPECT_EQ(answer[99].item<double>(), 8);
      asked.wait();
    } else {
      world.receive(question, Rank{0}, Tag{1}).wait();
      world.send(question.mul(2), Rank{0}, Tag{2}).wait();
    }
  });
}

// One rank's GPU is behind, so its sum is still queued when it asks for the host's.
TEST(Staging, CollectivesOfGpuAndHostDoNotOvertakeEachOther) {
  on_staged_ranks(3, [](Communicator& world) {
    const double ranks = world.size();
    at::Tensor there = at::full({1}, 1, of(at::kDouble)), here = at::full({1}, 2, at::kDouble);
    if (world.rank() == Rank{1}) keep_busy();
    Pending first = world.all_reduce(there);
    if (world.rank() != Rank{1}) {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));  // all is quiet: this one's is handed over
      first.test();
    }
    Pending second = world.all_reduce(here);
    second.wait();
    EXPECT_EQ(here.item<double>(), 2 * ranks);
    first.wait();
    EXPECT_EQ(there.item<double>(), ranks);
  });
}

void check_every_collective(Communicator& world) {
  const int me = world.rank().value;
  const auto last = Rank{world.size() - 1};
  keep_busy();
  at::Tensor most = at::full({4}, me, of(at::kLong)), told = at::full({5, 3}, me, of(at::kFloat)).t();
  at::Tensor narrow = at::full({9}, 1 + me, of(at::kBFloat16));
  const at::Tensor mine = at::full({2, 3}, me, of(at::kDouble));
  at::Tensor all = at::empty({world.size(), 2, 3}, of(at::kDouble));
  at::Tensor here = at::full({1}, 2, at::kDouble);
  world.all_reduce(most, Reduce::max).wait();
  world.broadcast(told, last).wait();
  Pending summed = world.all_reduce(narrow), beside = world.all_reduce(here);
  world.all_gather(mine, all).wait();
  beside.wait();
  summed.wait();
  world.barrier();
  EXPECT_EQ(most[3].item<std::int64_t>(), last.value);
  EXPECT_TRUE(told.eq(last.value).all().item<bool>());
  EXPECT_EQ(narrow[8].item<float>(), world.size() * (world.size() + 1) / 2);
  EXPECT_EQ(here.item<double>(), 2.0 * world.size());
  for (int r = 0; r < world.size(); ++r) EXPECT_TRUE(all[r].eq(r).all().item<bool>());
}

TEST(Staging, EveryCollective) { on_staged_ranks(3, check_every_collective); }

// Under mpirun, with a GPU for each rank; one rank will do.
TEST(Nccl, EveryCollective) {
  if (!nccl_built() || test::ranks_are_threads() || test::device() != at::kCUDA) GTEST_SKIP() << "no NCCL here";
  Communicator& world = *test::MpiEnvironment::get().world();
  const auto by_nccl = with_nccl(world);
  for (int round = 0; round < 3; ++round) check_every_collective(*by_nccl);
  at::Tensor sum = at::full({1 << 22}, 1 + world.rank().value, of(at::kFloat));
  keep_busy();
  Pending pending = by_nccl->all_reduce(sum);
  while (!pending.test()) continue;
  EXPECT_TRUE(sum.eq(world.size() * (world.size() + 1) / 2).all().item<bool>());
}

}  // namespace
}  // namespace tessera
