// Messages between places: copies within a rank, messages between ranks, in whatever order they are posted.
#include "tessera/comm/places/post_office.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/comm/threads/thread_communicator.h"

namespace tessera {
namespace {

constexpr Tag tag{7};

at::Tensor numbers(double first) { return at::arange(first, first + 6, at::kDouble).reshape({1, 1, 2, 3}); }
at::Tensor nothing() { return at::zeros({1, 1, 2, 3}, at::kDouble); }

TEST(PostOffice, CopiesWithinARankWhoeverComesFirst) {
  PostOffice office(nullptr, {0, 0, 0});
  const auto a = office.window(Rank{0}), b = office.window(Rank{1});
  const at::Tensor sent = numbers(1), early = nothing(), late = nothing();
  Pending receive = b->receive(early, Rank{0}, tag);
  EXPECT_FALSE(receive.test());
  a->send(sent, Rank{1}, tag).wait();
  receive.wait();
  EXPECT_TRUE(at::equal(early, sent));

  Pending send = a->send(sent, Rank{1}, tag);
  EXPECT_FALSE(send.test());
  b->receive(late, Rank{0}, tag).wait();
  send.wait();
  EXPECT_TRUE(at::equal(late, sent));
}

TEST(PostOffice, GivesTheSenderItsMemoryBackBeforeTheMessageIsTaken) {
  PostOffice office(nullptr, {0, 0});
  const auto a = office.window(Rank{0}), b = office.window(Rank{1});
  const at::Tensor sent = numbers(1), got = nothing();
  a->send(sent, Rank{1}, tag).wait();
  sent.fill_(-1);
  b->receive(got, Rank{0}, tag).wait();
  EXPECT_TRUE(at::equal(got, numbers(1)));
}

TEST(PostOffice, TellsPlacesAndTagsApart) {
  PostOffice office(nullptr, {0, 0, 0});
  const auto a = office.window(Rank{0}), b = office.window(Rank{1}), c = office.window(Rank{2});
  const at::Tensor from_a = nothing(), from_b = nothing(), other = nothing();
  Pending first = c->receive(from_b, Rank{1}, tag), second = c->receive(from_a, Rank{0}, tag),
          third = c->receive(other, Rank{0}, Tag{8});
  a->send(numbers(1), Rank{2}, Tag{8}).wait();
  a->send(numbers(2), Rank{2}, tag).wait();
  b->send(numbers(3), Rank{2}, tag).wait();
  for (Pending* pending : {&first, &second, &third}) pending->wait();
  EXPECT_TRUE(at::equal(other, numbers(1)));
  EXPECT_TRUE(at::equal(from_a, numbers(2)));
  EXPECT_TRUE(at::equal(from_b, numbers(3)));
}

TEST(PostOffice, WhatTheSameRankHasNotSentIsAnErrorAndNotAWait) {
  PostOffice office(nullptr, {0, 0});
  const auto b = office.window(Rank{1});
  Pending pending = b->receive(nothing(), Rank{0}, tag);
  EXPECT_THAT([&] { pending.wait(); },
              testing::ThrowsMessage<Error>(testing::HasSubstr("which place 0 of the same rank has not sent")));
}

// Places 0 and 1 are on rank 0, 2 and 3 on rank 1. Every place sends to all others.
TEST(PostOffice, MessagesBetweenRanksReachTheirPlaces) {
  run_thread_ranks(2, [](Communicator& ranks) {
    PostOffice office(&ranks, {0, 0, 1, 1});
    std::vector<std::unique_ptr<Communicator>> windows;
    std::vector<Pending> pending;
    std::map<std::pair<int, int>, at::Tensor> got;
    for (int place = 2 * ranks.rank().value; place < 2 * ranks.rank().value + 2; ++place) {
      Communicator& window = *windows.emplace_back(office.window(Rank{place}));
      for (int other = 0; other < 4; ++other) {
        if (other == place) continue;
        pending.push_back(window.receive(got[{other, place}] = nothing(), Rank{other}, tag));
        pending.push_back(window.send(numbers(100 * place + 10 * other), Rank{other}, tag));
      }
    }
    office.dispatch();
    for (Pending& p : pending) p.wait();
    for (const auto& [ends, tensor] : got)
      EXPECT_TRUE(at::equal(tensor, numbers(100 * ends.first + 10 * ends.second)))
          << "from place " << ends.first << " to place " << ends.second;
  });
}

}  // namespace
}  // namespace tessera
