// The post of one machine. Its processes are NodePosts of this one here, each with mappings of its own.
#include "tessera/comm/node/node_post.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <thread>

namespace tessera {
namespace {

using namespace std::chrono_literals;

std::vector<std::unique_ptr<NodePost>> posts(int count) {
  std::vector<std::unique_ptr<SharedPart>> owned;
  for (int i = 0; i < count; ++i) owned.push_back(SharedPart::make(static_cast<std::uint64_t>(100 + i)));
  std::vector<std::unique_ptr<NodePost>> out;
  for (int me = 0; me < count; ++me) {
    std::vector<std::unique_ptr<SharedPart>> parts;
    for (int i = 0; i < count; ++i)
      parts.push_back(
          SharedPart::open(getpid(), owned[static_cast<std::size_t>(i)]->file(), static_cast<std::uint64_t>(100 + i)));
    out.push_back(std::make_unique<NodePost>(std::move(parts), me));
  }
  return out;
}

constexpr Address from_0{.group = 7, .source = 0, .tag = 1};

TEST(SharedPart, IsOpenedOnlyByItsMark) {
  const auto part = SharedPart::make(42);
  ASSERT_NE(part, nullptr);
  EXPECT_NE(SharedPart::open(getpid(), part->file(), 42), nullptr);
  EXPECT_EQ(SharedPart::open(getpid(), part->file(), 43), nullptr);
  EXPECT_EQ(SharedPart::open(getpid(), 0, 42), nullptr) << "another file";
  EXPECT_EQ(SharedPart::open(getpid(), 9999, 42), nullptr) << "no file";
}

TEST(NodePost, LettersOfOneAddressComeInOrderWhetherExpectedOrNot) {
  const auto post = posts(2);
  Address other = from_0;
  other.tag = 2;
  Slip early{from_0};
  post[1]->expect(early);
  for (const std::int64_t bytes : {10, 11, 12}) post[0]->send(1, {from_0, -1, bytes});
  post[0]->send(1, {other, -1, 20});
  post[1]->collect();
  EXPECT_TRUE(early.arrived);
  EXPECT_EQ(early.letter.bytes, 10);
  for (const auto& [address, bytes] : {std::pair{other, 20}, {from_0, 11}, {from_0, 12}}) {
    Slip late{address};
    post[1]->expect(late);
    EXPECT_TRUE(late.arrived);
    EXPECT_EQ(late.letter.bytes, bytes);
  }
}

TEST(NodePost, AWithdrawnSlipLeavesTheLetterToTheNext) {
  const auto post = posts(2);
  Slip gone{from_0}, next{from_0};
  post[1]->expect(gone);
  post[1]->expect(next);
  post[1]->withdraw(gone);
  post[0]->send(1, {from_0, -1, 5});
  post[1]->collect();
  EXPECT_FALSE(gone.arrived);
  EXPECT_TRUE(next.arrived);
}

TEST(NodePost, LettersThatAFullBoxDoesNotTakeComeLaterAndInOrder) {
  const auto post = posts(2);
  constexpr std::int64_t count = 1000;
  for (std::int64_t i = 0; i < count; ++i) post[0]->send(1, {from_0, -1, i});
  EXPECT_FALSE(post[0]->sent(1));
  EXPECT_FALSE(post[0]->all_sent());
  for (std::int64_t i = 0; i < count; ++i) {
    Slip slip{from_0};
    post[1]->expect(slip);
    while (!slip.arrived) {
      post[0]->all_sent();
      post[1]->collect();
    }
    ASSERT_EQ(slip.letter.bytes, i);
  }
  EXPECT_TRUE(post[0]->all_sent());
}

TEST(NodePost, ABlockIsUsedAgainWhenAllItsReadersAreDone) {
  const auto post = posts(3);
  const std::int64_t first = post[0]->take_block(10'000, 2);
  std::fill_n(post[0]->data(0, first), 10'000, std::byte{9});
  EXPECT_EQ(post[1]->data(0, first)[9'999], std::byte{9});
  const std::int64_t second = post[0]->take_block(10'000, 1);
  EXPECT_GE(second, first + 10'000);
  post[1]->release(0, first);
  EXPECT_NE(post[0]->take_block(9'000, 1), first) << "one still reads it";
  post[2]->release(0, first);
  EXPECT_NE(post[0]->take_block(100, 1), first) << "much too large";
  EXPECT_EQ(post[0]->take_block(9'000, 1), first);
}

TEST(NodePost, ASleeperIsWokenByALetterAndOtherwiseByTheClock) {
  const auto post = posts(2);
  Slip slip{from_0};
  post[1]->expect(slip);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_FALSE(post[1]->wait_for(20ms, [&] { return slip.arrived; }));
  EXPECT_GE(std::chrono::steady_clock::now() - start, 20ms);
  std::thread sender([&] {
    std::this_thread::sleep_for(50ms);
    post[0]->send(1, {from_0, -1, 1});
  });
  const auto again = std::chrono::steady_clock::now();
  EXPECT_TRUE(post[1]->wait_for(30s, [&] { return slip.arrived; }));
  EXPECT_LT(std::chrono::steady_clock::now() - again, 20s);
  sender.join();
}

}  // namespace
}  // namespace tessera
