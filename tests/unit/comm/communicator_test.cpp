// Every operation of a communicator, on threads and under mpirun.
#include "tessera/comm/communicator.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <time.h>

#include <thread>

#include "support/ranks.h"

namespace tessera::test {
namespace {

const std::vector<at::ScalarType> dtypes{at::kFloat, at::kDouble, at::kBFloat16, at::kLong, at::kByte};

/// Sizes that are empty, tiny, below and above MPI's eager limit, and of several work items.
const std::vector<std::int64_t> lengths{0, 1, 1000, 100'000};

at::Tensor pattern(std::int64_t length, int seed, at::ScalarType dtype) {
  return at::arange(length, at::kLong).add(seed * 7).remainder(50).to(dtype);
}

Rank next(const Communicator& c) { return Rank{(c.rank().value + 1) % c.size()}; }
Rank previous(const Communicator& c) { return Rank{(c.rank().value + c.size() - 1) % c.size()}; }

TEST(Communicator, ARingPassesTensorsOfEveryTypeAndLength) {
  on_ranks(most_ranks(5), [](Communicator& c) {
    for (const auto dtype : dtypes)
      for (const auto length : lengths) {
        const at::Tensor mine = pattern(length, c.rank().value, dtype), theirs = at::zeros({length}, dtype);
        Pending in = c.receive(theirs, previous(c), Tag{1});
        Pending out = c.send(mine, next(c), Tag{1});
        in.wait();
        out.wait();
        EXPECT_TRUE(at::equal(theirs, pattern(length, previous(c).value, dtype))) << dtype << ' ' << length;
      }
  });
}

// What a rank that waits for the first computes meanwhile: ranks may outnumber cores.
TEST(Communicator, WhoeverWaitsLeavesTheCoreToOthers) {
  const auto computed = [] {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
  };
  on_ranks(most_ranks(3), [&](Communicator& c) {
    constexpr std::int64_t shared = 1000, by_mpi = 3'000'000;
    const std::vector<std::pair<std::string, std::function<void()>>> waits{
        {"message", [&] { c.receive(at::zeros({shared}), Rank{0}, Tag{1}).wait(); }},
        {"long message", [&] { c.receive(at::zeros({by_mpi}), Rank{0}, Tag{1}).wait(); }},
        {"sum", [&] { c.all_reduce(at::zeros({shared}), Reduce::sum).wait(); }},
        {"long sum", [&] { c.all_reduce(at::zeros({by_mpi}), Reduce::sum).wait(); }},
        {"barrier", [&] { c.barrier(); }}};
    for (std::size_t i = 0; i < waits.size(); ++i) {
      c.barrier();
      constexpr double late = 0.3;
      if (c.rank() == Rank{0}) {
        std::this_thread::sleep_for(std::chrono::duration<double>(late));
        for (int to = 1; to < c.size() && i < 2; ++to)
          c.send(at::zeros({i == 0 ? shared : by_mpi}), Rank{to}, Tag{1}).wait();
        if (i >= 2) waits[i].second();
        continue;
      }
      const double before = computed();
      waits[i].second();
      EXPECT_LT(computed() - before, late / 4) << waits[i].first;
    }
  });
}

TEST(Communicator, LongMessagesAndShortOnesKeepTheirOrderWithinATag) {
  on_ranks(most_ranks(3), [](Communicator& c) {
    // On one machine the short ones go through shared memory and the long ones do not.
    const std::vector<std::int64_t> mixed{10, 3'000'000, 0, 20, 2'500'000, 30};
    std::vector<Pending> pending;
    std::vector<at::Tensor> got;
    for (const auto length : mixed)
      pending.push_back(c.send(pattern(length, c.rank().value, at::kFloat), next(c), Tag{1}));
    for (const auto length : mixed) {
      got.push_back(at::zeros({length}, at::kFloat));
      pending.push_back(c.receive(got.back(), previous(c), Tag{1}));
    }
    for (Pending& p : pending) p.wait();
    for (const at::Tensor& one : got) EXPECT_TRUE(at::equal(one, pattern(one.numel(), previous(c).value, at::kFloat)));
  });
}

TEST(Communicator, ManyMessagesMayWaitForASlowReceiver) {
  on_ranks(most_ranks(3), [](Communicator& c) {
    constexpr int count = 700;
    std::vector<Pending> sends;
    for (int i = 0; i < count; ++i) sends.push_back(c.send(at::full({3}, i, at::kLong), next(c), Tag{i % 2}));
    c.barrier();
    for (int i = 0; i < count; ++i) {
      const at::Tensor into = at::zeros({3}, at::kLong);
      c.receive(into, previous(c), Tag{i % 2}).wait();
      ASSERT_EQ(into.sum().item<std::int64_t>(), 3 * i);
    }
    for (Pending& send : sends) send.wait();
  });
}

TEST(Communicator, StridedTensorsArriveInStridedTensors) {
  on_ranks(most_ranks(3), [](Communicator& c) {
    const at::Tensor image = pattern(2 * 3 * 8 * 9, c.rank().value, at::kFloat).reshape({2, 3, 8, 9});
    const at::Tensor expected = pattern(2 * 3 * 8 * 9, previous(c).value, at::kFloat).reshape({2, 3, 8, 9});
    const at::Tensor sent = image.contiguous(at::MemoryFormat::ChannelsLast).narrow(3, 2, 4);
    const at::Tensor got = at::zeros({2, 3, 10, 10}, at::kFloat);
    Pending out = c.send(sent, next(c), Tag{1});
    c.receive(got.narrow(2, 1, 8).narrow(3, 5, 4), previous(c), Tag{1}).wait();
    out.wait();
    EXPECT_TRUE(at::equal(got.narrow(2, 1, 8).narrow(3, 5, 4), expected.narrow(3, 2, 4)));
    EXPECT_EQ(got.ne(0).sum().item<std::int64_t>(), expected.narrow(3, 2, 4).ne(0).sum().item<std::int64_t>());
  });
}

TEST(Communicator, MessagesMatchByTagAndInOrderWithinATag) {
  on_ranks(most_ranks(2), [](Communicator& c) {
    std::vector<Pending> sends;
    for (const int value : {10, 11}) sends.push_back(c.send(at::full({4}, value, at::kLong), next(c), Tag{1}));
    sends.push_back(c.send(at::full({4}, 20, at::kLong), next(c), Tag{2}));
    const auto received = [&](Tag tag) {
      const at::Tensor into = at::zeros({4}, at::kLong);
      c.receive(into, previous(c), tag).wait();
      return into[3].item<std::int64_t>();
    };
    EXPECT_EQ(received(Tag{2}), 20);
    EXPECT_EQ(received(Tag{1}), 10);
    EXPECT_EQ(received(Tag{1}), 11);
    for (Pending& send : sends) send.wait();
  });
}

TEST(Communicator, ARankMaySendToItself) {
  on_ranks(1, [](Communicator& c) {
    const at::Tensor into = at::zeros({5}, at::kFloat);
    Pending in = c.receive(into, Rank{0}, Tag{3});
    c.send(at::full({5}, 2.0, at::kFloat), Rank{0}, Tag{3}).wait();
    in.wait();
    EXPECT_EQ(into.sum().item<float>(), 10);
  });
}

TEST(Communicator, PendingKeepsATemporaryAlive) {
  on_ranks(most_ranks(2), [](Communicator& c) {
    Pending out = c.send(at::full({200'000}, c.rank().value + 1, at::kFloat), next(c), Tag{1});
    const at::Tensor churn = at::full({200'000}, -1, at::kFloat), into = at::zeros({200'000}, at::kFloat);
    c.receive(into, previous(c), Tag{1}).wait();
    EXPECT_TRUE(into.eq(previous(c).value + 1).all().item<bool>());
    out.wait();
  });
}

TEST(Communicator, TestTellsWhetherItIsDone) {
  on_ranks(most_ranks(2), [](Communicator& c) {
    if (c.size() == 1) return;
    const at::Tensor into = at::zeros({3}, at::kFloat);
    if (c.rank() == Rank{1}) {
      Pending in = c.receive(into, Rank{0}, Tag{1});
      EXPECT_FALSE(in.test());
      c.barrier();
      while (!in.test()) std::this_thread::yield();
      EXPECT_EQ(into.sum().item<float>(), 3);
    } else {
      c.barrier();
      if (c.rank() == Rank{0}) c.send(at::full({3}, 1.0, at::kFloat), Rank{1}, Tag{1}).wait();
    }
  });
}

TEST(Communicator, AnAbandonedReceiveDoesNotTakeTheNextMessage) {
  on_ranks(most_ranks(2), [](Communicator& c) {
    const at::Tensor dropped = at::zeros({4}, at::kFloat), into = at::zeros({4}, at::kFloat);
    { const Pending gone = c.receive(dropped, previous(c), Tag{1}); }
    c.barrier();
    Pending out = c.send(at::full({4}, 5.0, at::kFloat), next(c), Tag{1});
    c.receive(into, previous(c), Tag{1}).wait();
    out.wait();
    EXPECT_EQ(into.sum().item<float>(), 20);
    EXPECT_EQ(dropped.sum().item<float>(), 0);
  });
}

TEST(Communicator, AllReduceSumsAndTakesTheMaximumOfEveryType) {
  on_ranks(most_ranks(5), [](Communicator& c) {
    for (const auto dtype : dtypes)
      for (const auto length : lengths)
        for (const Reduce op : {Reduce::sum, Reduce::max}) {
          const at::Tensor mine = pattern(length, c.rank().value, dtype);
          at::Tensor expected = pattern(length, 0, dtype);
          for (int r = 1; r < c.size(); ++r)
            expected = op == Reduce::sum ? expected.add(pattern(length, r, dtype))
                                         : expected.maximum(pattern(length, r, dtype));
          c.all_reduce(mine, op).wait();
          EXPECT_TRUE(at::equal(mine, expected)) << dtype << ' ' << length;
        }
  });
}

TEST(Communicator, AllReduceWorksOnAStridedTensor) {
  on_ranks(most_ranks(3), [](Communicator& c) {
    const at::Tensor whole = at::full({4, 6}, c.rank().value + 1, at::kDouble);
    c.all_reduce(whole.narrow(1, 1, 2)).wait();
    const double sum = c.size() * (c.size() + 1) / 2;
    EXPECT_TRUE(whole.narrow(1, 1, 2).eq(sum).all().item<bool>());
    EXPECT_TRUE(whole.narrow(1, 3, 3).eq(c.rank().value + 1).all().item<bool>());
  });
}

TEST(Communicator, AllReduceGivesTheSameBitsEveryTimeAndOnEveryRank) {
  on_ranks(most_ranks(5), [](Communicator& c) {
    const auto reduced = [&] {
      at::Tensor x = at::arange(70'000, at::kFloat).mul(0.1 + c.rank().value).sin();
      c.all_reduce(x).wait();
      return x;
    };
    const at::Tensor first = reduced(), all = at::zeros({c.size(), first.numel()}, at::kFloat);
    for (int i = 0; i < 5; ++i) EXPECT_TRUE(at::equal(first, reduced()));
    c.all_gather(first, all).wait();
    for (int r = 0; r < c.size(); ++r) EXPECT_TRUE(at::equal(first, all[r]));
  });
}

TEST(Communicator, SeveralCollectivesMayBeUnderWay) {
  on_ranks(most_ranks(4), [](Communicator& c) {
    std::vector<at::Tensor> buckets;
    std::vector<Pending> pending;
    for (int i = 0; i < 6; ++i) {
      buckets.push_back(at::full({50'000}, i + c.rank().value, at::kFloat));
      pending.push_back(c.all_reduce(buckets.back()));
    }
    while (!pending[5].test()) std::this_thread::yield();
    for (Pending& p : pending) p.wait();
    for (int i = 0; i < 6; ++i)
      EXPECT_TRUE(
          buckets[static_cast<std::size_t>(i)].eq(i * c.size() + c.size() * (c.size() - 1) / 2).all().item<bool>());
  });
}

TEST(Communicator, BroadcastGivesEveryRankTheRootsElements) {
  on_ranks(most_ranks(4), [](Communicator& c) {
    for (int root = 0; root < c.size(); ++root)
      for (const auto length : lengths) {
        const at::Tensor x = pattern(length, c.rank().value, at::kDouble);
        c.broadcast(x, Rank{root}).wait();
        EXPECT_TRUE(at::equal(x, pattern(length, root, at::kDouble)));
      }
    const at::Tensor strided = at::full({4, 4}, c.rank().value, at::kLong);
    c.broadcast(strided.narrow(1, 0, 2), Rank{c.size() - 1}).wait();
    EXPECT_EQ(strided.sum().item<std::int64_t>(), 8 * (c.size() - 1) + 8 * c.rank().value);
  });
}

TEST(Communicator, SharedTensorsAreOneWhereRanksAreThreads) {
  on_ranks(most_ranks(3), [](Communicator& c) {
    EXPECT_EQ(c.shares_memory(), ranks_are_threads());
    if (!c.shares_memory()) {
      EXPECT_THROW(c.share(at::zeros({1}), Rank{0}), Error);
      return;
    }
    for (int root = 0; root < c.size(); ++root) {
      const at::Tensor shared =
          c.share(c.rank() == Rank{root} ? at::full({c.size(), 2}, root, at::kLong) : at::Tensor(), Rank{root});
      EXPECT_EQ(shared[c.size() - 1][1].item<std::int64_t>(), root);
      c.barrier();
      shared[c.rank().value].fill_(100 + c.rank().value);
      c.barrier();
      for (int r = 0; r < c.size(); ++r) EXPECT_EQ(shared[r][0].item<std::int64_t>(), 100 + r);
    }
  });
}

TEST(Communicator, AllGatherPutsEveryRankInItsRow) {
  on_ranks(most_ranks(4), [](Communicator& c) {
    for (const auto dtype : dtypes)
      for (const auto length : lengths) {
        const at::Tensor into = at::zeros({c.size(), length}, dtype);
        c.all_gather(pattern(length, c.rank().value, dtype), into).wait();
        for (int r = 0; r < c.size(); ++r) EXPECT_TRUE(at::equal(into[r], pattern(length, r, dtype)));
      }
  });
}

TEST(Communicator, SplitMakesGroupsThatDoNotHearEachOther) {
  on_ranks(most_ranks(6), [](Communicator& c) {
    const int color = c.rank().value % 2;
    const auto part = c.split(color, -c.rank().value);  // backwards
    const int members = (c.size() + 1 - color) / 2;
    ASSERT_EQ(part->size(), members);
    EXPECT_EQ(part->rank().value, members - 1 - c.rank().value / 2);
    EXPECT_EQ(part->name(), c.name() + "/" + std::to_string(color));
    // The same ranks and tags as in the other group and in the parent.
    const at::Tensor mine = at::full({10}, c.rank().value, at::kLong), theirs = at::zeros({10}, at::kLong);
    Pending out = part->send(mine, next(*part), Tag{1});
    part->receive(theirs, previous(*part), Tag{1}).wait();
    out.wait();
    EXPECT_EQ(theirs[0].item<std::int64_t>() % 2, color);
    part->all_reduce(mine).wait();
    EXPECT_EQ(mine[0].item<std::int64_t>(), members * (members - 1) + members * color);
    const auto half = part->split(part->rank().value < 1 ? 0 : -1, 0);
    EXPECT_EQ(half != nullptr, part->rank().value < 1);
    c.barrier();
  });
}

TEST(Communicator, BarrierLetsNobodyThroughEarly) {
  on_ranks(most_ranks(4), [](Communicator& c) {
    for (int i = 0; i < 20; ++i) {
      Pending out, in;
      const at::Tensor into = at::zeros({1}, at::kFloat);
      if (c.rank() == Rank{0} && c.size() > 1) out = c.send(at::full({1}, i, at::kFloat), Rank{1}, Tag{9});
      if (c.rank() == Rank{1}) in = c.receive(into, Rank{0}, Tag{9});
      out.wait();
      in.wait();
      c.barrier();
      EXPECT_EQ(into.item<float>(), c.rank() == Rank{1} ? i : 0);
    }
  });
}

TEST(Communicator, LongMessagesTravelInPieces) {
  if (ranks_are_threads()) GTEST_SKIP() << "only MPI counts in 32 bits";
  // The pieces of an option, not of 2^31 bytes, so that the test needs no memory.
  const auto c = mpi_world({.timeout = short_timeout.timeout, .max_piece_bytes = 1 << 12, .max_shared_bytes = 0});
  const at::Tensor mine = pattern(3001, c->rank().value, at::kDouble), theirs = at::zeros({3001}, at::kDouble);
  Pending in = c->receive(theirs, previous(*c), Tag{1}), out = c->send(mine, next(*c), Tag{1});
  in.wait();
  out.wait();
  EXPECT_TRUE(at::equal(theirs, pattern(3001, previous(*c).value, at::kDouble)));
  const at::Tensor wide = at::full({40, 60}, c->rank().value, at::kDouble), packed = at::zeros({40, 30}, at::kDouble);
  Pending strided = c->send(wide.narrow(1, 5, 30), next(*c), Tag{2});
  c->receive(packed, previous(*c), Tag{2}).wait();
  strided.wait();
  EXPECT_TRUE(packed.eq(previous(*c).value).all().item<bool>()) << "strided at one end, dense at the other";
  const at::Tensor all = at::zeros({c->size(), 3001}, at::kDouble);
  c->all_gather(mine, all).wait();
  EXPECT_TRUE(at::equal(all[previous(*c).value], theirs));
  const at::Tensor sum = mine.clone();
  c->all_reduce(sum).wait();
  EXPECT_TRUE(at::equal(sum, all.sum(0)));
  c->broadcast(mine, Rank{c->size() - 1}).wait();
  EXPECT_TRUE(at::equal(mine, pattern(3001, c->size() - 1, at::kDouble)));
}

/// Ranks on other machines have no memory in common with this one.
TEST(Communicator, MpiAloneDoesTheSame) {
  if (ranks_are_threads()) GTEST_SKIP() << "threads do not need MPI";
  const auto c = mpi_world({.timeout = short_timeout.timeout, .max_shared_bytes = 0});
  const int ranks = c->size();
  for (const auto length : lengths) {
    const at::Tensor mine = pattern(length, c->rank().value, at::kFloat), theirs = at::zeros({length}, at::kFloat);
    { const Pending gone = c->receive(at::zeros({length}, at::kFloat), previous(*c), Tag{2}); }
    Pending in = c->receive(theirs, previous(*c), Tag{1}), out = c->send(mine, next(*c), Tag{1});
    in.wait();
    out.wait();
    EXPECT_TRUE(at::equal(theirs, pattern(length, previous(*c).value, at::kFloat))) << length;
    for (const auto dtype : dtypes) {
      const at::Tensor all = at::zeros({ranks, length}, dtype), sum = pattern(length, c->rank().value, dtype);
      c->all_gather(pattern(length, c->rank().value, dtype), all).wait();
      at::Tensor expected = pattern(length, 0, dtype);
      for (int r = 1; r < ranks; ++r) expected = expected.add(pattern(length, r, dtype));
      for (int r = 0; r < ranks; ++r) EXPECT_TRUE(at::equal(all[r], pattern(length, r, dtype))) << length;
      c->all_reduce(sum).wait();
      EXPECT_TRUE(at::equal(sum, expected)) << dtype << ' ' << length;
    }
    c->barrier();
  }
  const auto part = c->split(0, -c->rank().value);
  EXPECT_EQ(part->rank().value, ranks - 1 - c->rank().value);
  part->barrier();
}

TEST(Communicator, ATimeoutNamesOperationRankPeerTagAndSeconds) {
  const auto body = [](Communicator& c) {
    const at::Tensor into = at::zeros({16}, at::kFloat);
    try {
      c.receive(into, next(c), Tag{42}).wait();
      ADD_FAILURE() << "nobody sent";
    } catch (const CommunicationTimeout& error) {
      // A busy machine may look at the clock late, never early.
      const std::string before = concat(c.title(c.rank()), " waited "), what = error.what();
      EXPECT_EQ(what.substr(0, before.size()), before);
      EXPECT_GE(std::stod(what.substr(before.size())), 2.0) << what;
      EXPECT_NE(
          what.find(concat(" s for ", c.title(next(c)), ": receive of 64 bytes, movement 42 of micro 0, forward")),
          std::string::npos)
          << what;
    }
    c.barrier();
  };
  // Patient enough for the barrier, to which the ranks come when their own clocks have run out.
  const CommunicatorOptions impatient{.timeout = std::chrono::seconds(2)};
  if (ranks_are_threads()) return run_thread_ranks(2, body, impatient);
  body(*mpi_world(impatient));
}

TEST(Tag, FieldsDoNotOverlapAndAreChecked) {
  EXPECT_EQ(make_tag({.movement = 3}).value, 3);
  EXPECT_EQ(make_tag({.movement = (1 << 14) - 1, .micro = (1 << 12) - 1, .upward = true, .backward = true}).value,
            Tag::limit - 1);
  EXPECT_NE(make_tag({.micro = 1}), make_tag({.movement = 1}));
  EXPECT_NE(make_tag({.upward = true}), make_tag({.backward = true}));
  EXPECT_THROW(make_tag({.micro = 1 << 12}), UsageError);
  EXPECT_THROW(make_tag({.movement = -1}), UsageError);
}

}  // namespace
}  // namespace tessera::test
