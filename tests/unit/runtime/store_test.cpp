#include "tessera/runtime/store.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/device.h"
#include "tessera/base/error.h"

namespace tessera {
namespace {

at::Tensor numbers(double first, std::int64_t rows = 5) {
  return at::arange(first, first + static_cast<double>(2 * 3 * rows * 7), at::kFloat)
      .reshape({2, 3, rows, 7})
      .contiguous(at::MemoryFormat::ChannelsLast)
      .to(test::device());
}

// In a file, and beside a GPU in the host's memory where there is one.
std::vector<std::unique_ptr<Store>> stores() {
  std::vector<std::unique_ptr<Store>> all;
  all.push_back(make_store(StoreKind::file, test::device(), testing::TempDir()));
  if (test::device() == at::kCUDA) all.push_back(make_store(StoreKind::host, test::device(), ""));
  return all;
}

TEST(Store, GivesBackTheSameNumbersInTheSameLayout) {
  for (const auto& store : stores()) {
    std::unique_ptr<Stored> first = store->put(numbers(1)), second = store->put(numbers(5000, 2));
    second->prefetch();
    for (int time = 0; time < 2; ++time) {
      const at::Tensor a = first->get(), b = second->get();
      EXPECT_TRUE(at::equal(a, numbers(1)));
      EXPECT_TRUE(at::equal(b, numbers(5000, 2)));
      EXPECT_EQ(a.strides(), numbers(1).strides());
      EXPECT_EQ(a.device().type(), test::device());
    }
  }
}

TEST(Store, TakesPartsOfLargerTensors) {
  for (const auto& store : stores()) {
    const at::Tensor part = numbers(1).narrow(2, 1, 3).narrow(3, 2, 4);
    EXPECT_TRUE(at::equal(store->put(part)->get(), part));
  }
}

TEST(Store, UsesTheRoomAgainThatWasGivenBack) {
  for (const auto& store : stores()) {
    const auto bytes = static_cast<std::int64_t>(numbers(1).nbytes());
    for (int i = 0; i < 5; ++i) {
      const auto one = store->put(numbers(i)), other = store->put(numbers(i + 0.5));
      EXPECT_TRUE(at::equal(one->get(), numbers(i)));
      EXPECT_TRUE(at::equal(other->get(), numbers(i + 0.5)));
    }
    EXPECT_EQ(store->peak_bytes(), 2 * bytes);
  }
}

TEST(Store, SaysWhatIsMissing) {
  const auto message = [](const char* words) { return testing::ThrowsMessage<UsageError>(testing::HasSubstr(words)); };
  EXPECT_THAT([] { make_store(StoreKind::file, at::kCPU, ""); }, message("--scratch DIR"));
  EXPECT_THAT([] { make_store(StoreKind::host, at::kCPU, ""); }, message("use --store file"));
  EXPECT_THAT([] { make_store(StoreKind::file, at::kCPU, "/no/such/folder"); }, message("--scratch /no/such/folder"));
  EXPECT_THAT([] { parse_store("disk"); }, message("--store disk"));
  EXPECT_EQ(make_store(StoreKind::device, at::kCPU, ""), nullptr);
}

}  // namespace
}  // namespace tessera
