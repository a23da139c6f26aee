#include "tessera/data/padded.h"

#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "reading.h"
#include "tessera/data/loader.h"
#include "tessera/data/synthetic.h"

namespace tessera {
namespace {

std::shared_ptr<SyntheticImages> five() {
  return std::make_shared<SyntheticImages>(
      SyntheticOptions{.classes = 3, .height = 6, .width = 7, .size = 5, .mask_classes = 2});
}

TEST(Padded, HasAWholeNumberOfBatches) {
  EXPECT_EQ(Padded(five(), 4).size(), 8);
  EXPECT_EQ(Padded(five(), 5).size(), 5);
  EXPECT_EQ(Padded(five(), 1).size(), 5);
  EXPECT_EQ(Padded(five(), 9).size(), 9);
}

TEST(Padded, IsTheSourceAndThenBlanks) {
  const auto source = five();
  const Padded padded(source, 4);
  for (std::int64_t i = 0; i < 5; ++i) {
    EXPECT_EQ(padded.label(i), source->label(i));
    EXPECT_TRUE(at::equal(read_whole(padded, i), read_whole(*source, i)));
    EXPECT_TRUE(at::equal(read_whole_mask(padded, i), read_whole_mask(*source, i)));
  }
  for (std::int64_t i = 5; i < 8; ++i) {
    EXPECT_EQ(padded.label(i), 0);
    EXPECT_EQ(read_whole(padded, i).abs().max().item<double>(), 0);
    EXPECT_TRUE(read_whole_mask(padded, i).eq(ignored_label).all().item<bool>());
  }
}

TEST(Padded, LetsALoaderGiveEveryImageOnce) {
  Loader loader(std::make_shared<Padded>(five(), 4), {.batch_size = 4, .shuffle = false, .dtype = at::kDouble});
  EXPECT_EQ(loader.batches_per_epoch(), 2);
  loader.next();
  const Batch last = loader.next();
  EXPECT_TRUE(at::equal(last.images.select(0, 0), read_whole(*five(), 4)));
  EXPECT_EQ(last.images.slice(0, 1).abs().max().item<double>(), 0);
}

}  // namespace
}  // namespace tessera
