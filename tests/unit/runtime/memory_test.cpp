#include "tessera/runtime/memory.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <set>
#include <thread>

namespace tessera {
namespace {

class Memory : public testing::TestWithParam<BlockReuse> {
 protected:
  void SetUp() override { install_cpu_allocator(GetParam()); }
  MemoryAccountPtr account_ = std::make_shared<MemoryAccount>();
};

TEST_P(Memory, CountsLiveAndPeakBytesExactly) {
  const MemoryScope scope(account_);
  auto a = at::empty({1000}, at::kFloat);
  EXPECT_EQ(account_->live_bytes(), 4000);
  {
    const auto b = at::empty({1 << 20}, at::kDouble);
    EXPECT_EQ(account_->live_bytes(), 4000 + (8 << 20));
  }
  EXPECT_EQ(account_->live_bytes(), 4000);
  EXPECT_EQ(account_->peak_bytes(), 4000 + (8 << 20));
  account_->reset_peak();
  EXPECT_EQ(account_->peak_bytes(), 4000);
  a.reset();
  EXPECT_EQ(account_->live_bytes(), 0);
}

TEST_P(Memory, ViewsAndEmptyTensorsCostNothing) {
  const MemoryScope scope(account_);
  const auto a = at::empty({64, 64});
  const auto view = a.narrow(0, 3, 5).t();
  const auto nothing = at::empty({0, 7});
  EXPECT_EQ(account_->live_bytes(), 64 * 64 * 4);
}

TEST_P(Memory, AnotherThreadMayFreeAndAnotherRankIsNotCharged) {
  const auto other = std::make_shared<MemoryAccount>();
  at::Tensor made;
  std::thread([&] {
    const MemoryScope scope(other);
    made = at::empty({1 << 18});
  }).join();
  const MemoryScope scope(account_);
  EXPECT_EQ(account_->live_bytes(), 0);
  EXPECT_EQ(other->live_bytes(), 4 << 18);
  made.reset();
  EXPECT_EQ(other->live_bytes(), 0);
}

TEST_P(Memory, BlocksOfAnotherNumaNodeAreNotTaken) {
  if (GetParam() == BlockReuse::off) return;
  std::set<void*> here;
  for (int i = 0; i < 20; ++i) here.insert(at::empty({1 << 20}).data_ptr());
  std::thread([&] {
    take_blocks_of(1);
    at::Tensor there = at::empty({1 << 20});
    EXPECT_FALSE(here.contains(there.data_ptr()));
    void* const data = there.data_ptr();
    std::thread([&] { there.reset(); }).join();  // whoever frees it
    EXPECT_EQ(at::empty({1 << 20}).data_ptr(), data);
  }).join();
  EXPECT_TRUE(here.contains(at::empty({1 << 20}).data_ptr()));
}

TEST_P(Memory, TensorsNeverOverlapWhateverTheOrderOfFreeing) {
  std::mt19937 random(1);
  std::vector<std::pair<at::Tensor, unsigned char>> live;
  for (int i = 0; i < 3000; ++i) {
    if (live.size() > 40 || (!live.empty() && random() % 3 == 0)) {
      const auto victim = random() % live.size();
      const auto& [tensor, mark] = live[victim];
      const auto* bytes = tensor.data_ptr<unsigned char>();
      for (std::int64_t j = 0; j < tensor.numel(); j += 997) ASSERT_EQ(bytes[j], mark);
      ASSERT_EQ(bytes[tensor.numel() - 1], mark);
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(victim));
    } else {
      const auto size = static_cast<std::int64_t>(1 + random() % (i % 10 == 0 ? 3'000'000 : 300'000));
      const auto mark = static_cast<unsigned char>(random());
      live.emplace_back(at::empty({size}, at::kByte), mark);
      std::memset(live.back().first.data_ptr(), mark, static_cast<std::size_t>(size));
      ASSERT_EQ(reinterpret_cast<std::uintptr_t>(live.back().first.data_ptr()) % 64, 0u);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Reuse, Memory, testing::Values(BlockReuse::on, BlockReuse::off),
                         [](const auto& reuse) { return reuse.param == BlockReuse::on ? "on" : "off"; });

TEST(MemoryReuse, AFreedBlockIsTakenAgain) {
  install_cpu_allocator(BlockReuse::on);
  auto a = at::empty({3'000'000});
  const void* at = a.data_ptr();
  a.reset();
  EXPECT_EQ(at::empty({3'000'000}).data_ptr(), at);
}

#ifdef __SANITIZE_ADDRESS__
TEST(MemoryReuse, TheSanitizerKnowsWhatIsHandedOut) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  install_cpu_allocator(BlockReuse::on);
  auto a = at::empty({100'000}, at::kByte);
  volatile unsigned char* bytes = a.data_ptr<unsigned char>();
  bytes[99'999] = 1;
  EXPECT_DEATH(bytes[100'008] = 1, "use-after-poison");
  a.reset();
  EXPECT_DEATH(bytes[0] = 1, "use-after-poison");
}
#endif

}  // namespace
}  // namespace tessera
