#include "tessera/data/loader.h"

#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <numeric>

#include "reading.h"
#include "tessera/base/error.h"
#include "tessera/data/augmented.h"
#include "tessera/data/synthetic.h"

namespace tessera {
namespace {

/// Pixel (y, x) of image i is 10000 i + 100 y + x, its label i; can be told to fail at one image or to be slow.
class NumberedImages : public ImageSource {
 public:
  explicit NumberedImages(std::int64_t size) : size_(size) {}
  std::int64_t size() const override { return size_; }
  int classes() const override { return 1000; }
  std::array<std::int64_t, 3> image_shape() const override { return {2, 4, 6}; }
  std::int64_t label(std::int64_t index) const override { return index; }
  void read(ReadKey key, Interval rows, Interval columns, const at::Tensor& out) const override {
    check_read(key, rows, columns, out);
    const std::int64_t index = key.index;
    ++reads;
    // Uneven, so that workers finish out of order.
    std::this_thread::sleep_for(std::chrono::microseconds(reads % 3 * slowness_us));
    if (index == broken_image) throw UsageError("image 5 is broken");
    for (std::int64_t y = 0; y < rows.size(); ++y)
      for (std::int64_t x = 0; x < columns.size(); ++x)
        out.select(1, y).select(1, x).fill_(10000 * index + 100 * (rows.begin + y) + columns.begin + x);
  }
  std::string describe() const override { return "numbered images"; }

  std::int64_t broken_image = -1;
  int slowness_us = 0;
  mutable std::atomic<int> reads{0};

 private:
  std::int64_t size_;
};

std::vector<std::int64_t> labels_of(const Batch& batch) {
  const auto* begin = batch.labels.data_ptr<std::int64_t>();
  return {begin, begin + batch.labels.numel()};
}

std::vector<std::int64_t> labels_of_epoch(Loader& loader) {
  std::vector<std::int64_t> all;
  for (std::int64_t i = 0; i < loader.batches_per_epoch(); ++i)
    for (const auto label : labels_of(loader.next())) all.push_back(label);
  return all;
}

TEST(Loader, ImagesAreHandedOverInTheTypeThatIsAskedFor) {
  const auto source = std::make_shared<NumberedImages>(6);
  for (const int workers : {0, 2}) {
    Loader narrow(source, {.batch_size = 3, .deliver = at::TensorOptions().dtype(at::kBFloat16), .workers = workers});
    Loader wide(source, {.batch_size = 3});
    for (int i = 0; i < 4; ++i) {
      const Batch a = narrow.next(), b = wide.next();
      EXPECT_EQ(a.images.scalar_type(), at::kBFloat16);
      EXPECT_TRUE(a.images.is_contiguous(at::MemoryFormat::ChannelsLast));
      EXPECT_TRUE(at::equal(a.images, b.images.to(at::kBFloat16)));
      EXPECT_EQ(labels_of(a), labels_of(b));
    }
  }
}

TEST(Loader, TheSequenceDoesNotDependOnWorkersOrDepth) {
  const auto source = std::make_shared<NumberedImages>(26);
  source->slowness_us = 200;
  const LoaderOptions options{.batch_size = 4, .seed = 9};
  for (const int workers : {1, 3}) {
    for (const int depth : {1, 2, 5}) {
      Loader synchronous(source, options);
      auto threaded_options = options;
      threaded_options.workers = workers;
      threaded_options.ahead.batches = depth;
      Loader threaded(source, threaded_options);
      for (int step = 0; step < 15; ++step) {
        const Batch a = synchronous.next(), b = threaded.next();
        ASSERT_TRUE(at::equal(a.labels, b.labels)) << workers << " workers, step " << step;
        ASSERT_TRUE(at::equal(a.images, b.images)) << workers << " workers, step " << step;
        ASSERT_EQ(a.epoch, b.epoch);
        ASSERT_EQ(a.first_sample, b.first_sample);
      }
    }
  }
}

TEST(Loader, ImagesBelongToTheirLabels) {
  Loader loader(std::make_shared<NumberedImages>(20), {.batch_size = 5, .dtype = at::kDouble, .workers = 3});
  for (int step = 0; step < 8; ++step) {
    const Batch batch = loader.next();
    ASSERT_EQ(batch.images.scalar_type(), at::kDouble);
    for (std::int64_t i = 0; i < 5; ++i)
      EXPECT_EQ(batch.images[i][1][3][5].item<double>(), static_cast<double>(10000 * labels_of(batch)[i] + 305));
  }
}

TEST(Loader, AnEpochShowsEveryImageOnceAndTheNextInAnotherOrder) {
  Loader loader(std::make_shared<NumberedImages>(40), {.batch_size = 8, .workers = 2});
  const auto first = labels_of_epoch(loader), second = labels_of_epoch(loader);
  EXPECT_NE(first, second);
  std::vector<std::int64_t> all(40);
  std::iota(all.begin(), all.end(), 0);
  for (auto epoch : {first, second}) {
    EXPECT_NE(epoch, all) << "not shuffled";
    std::sort(epoch.begin(), epoch.end());
    EXPECT_EQ(epoch, all);
  }
}

TEST(Loader, AnIncompleteLastBatchIsDroppedAndTheNextEpochFollows) {
  Loader loader(std::make_shared<NumberedImages>(10), {.batch_size = 4, .shuffle = false});
  const std::vector<std::vector<std::int64_t>> expected{{0, 1, 2, 3}, {4, 5, 6, 7}, {0, 1, 2, 3}, {4, 5, 6, 7}};
  for (std::size_t step = 0; step < 4; ++step) {
    const Batch batch = loader.next();
    EXPECT_EQ(labels_of(batch), expected[step]);
    EXPECT_EQ(batch.epoch, step / 2);
    EXPECT_EQ(batch.first_sample, step % 2 * 4);
  }
}

TEST(Loader, APartIsTheCropOfTheWholeBatch) {
  const auto source = std::make_shared<NumberedImages>(30);
  Loader whole(source, {.batch_size = 6, .seed = 4});
  Loader part(source, {.batch_size = 6, .part = image_box({2, 5}, {1, 4}, {3, 6}), .seed = 4, .workers = 2});
  for (int step = 0; step < 7; ++step) {
    const Batch a = whole.next(), b = part.next();
    EXPECT_TRUE(at::equal(b.images, a.images.slice(0, 2, 5).slice(2, 1, 4).slice(3, 3, 6)));
    EXPECT_TRUE(at::equal(b.labels, a.labels.slice(0, 2, 5)));
    EXPECT_EQ(b.first_sample, a.first_sample + 2);
    EXPECT_TRUE(b.images.is_contiguous(at::MemoryFormat::ChannelsLast));
  }
}

TEST(Loader, ARankWithoutPixelsGetsLabelsAndReadsNothing) {
  const auto source = std::make_shared<NumberedImages>(8);
  for (const int workers : {0, 2}) {
    Loader labels_only(source,
                       {.batch_size = 4, .part = image_box({0, 4}, {}, {}), .shuffle = false, .workers = workers});
    EXPECT_EQ(labels_of(labels_only.next()), (std::vector<std::int64_t>{0, 1, 2, 3}));
    EXPECT_EQ(source->reads, 0);
    Loader nothing(source, {.batch_size = 4, .part = image_box({2, 2}, {0, 4}, {0, 6}), .workers = workers});
    EXPECT_EQ(nothing.next().images.sizes(), at::IntArrayRef({0, 2, 4, 6}));
    EXPECT_EQ(source->reads, 0);
  }
}

TEST(Loader, StartingAtAStepForwardOrBackGivesTheSameBatchesAsWalkingThere) {
  const auto source = std::make_shared<NumberedImages>(22);
  source->slowness_us = 200;
  for (const int workers : {0, 1, 3}) {
    Loader jumping(source, {.batch_size = 4, .seed = 2, .workers = workers});
    jumping.next();
    for (const int start : {13, 2}) {
      Loader walking(source, {.batch_size = 4, .seed = 2});
      for (int step = 0; step < start; ++step) walking.next();
      jumping.start_at(start);
      for (int step = start; step < start + 6; ++step) {
        const Batch a = walking.next(), b = jumping.next();
        ASSERT_TRUE(at::equal(a.images, b.images)) << "step " << step << ", " << workers << " workers";
        ASSERT_EQ(a.epoch, b.epoch);
      }
    }
  }
}

TEST(Loader, AnErrorOfAWorkerIsThrownFromNextAndTheBatchBehindItFollows) {
  const auto source = std::make_shared<NumberedImages>(12);
  source->broken_image = 5;
  for (const int workers : {0, 1, 3}) {
    Loader loader(source, {.batch_size = 4, .shuffle = false, .workers = workers});
    EXPECT_EQ(labels_of(loader.next()).front(), 0);
    try {
      loader.next();
      ADD_FAILURE() << "no error with " << workers << " workers";
    } catch (const UsageError& error) {
      EXPECT_STREQ(error.what(), "image 5 is broken");
    }
    EXPECT_EQ(labels_of(loader.next()).front(), 8);
  }
}

TEST(Loader, DyingInTheMiddleOfReadingAheadDoesNotHang) {
  const auto source = std::make_shared<NumberedImages>(64);
  source->slowness_us = 500;
  for (int taken = 0; taken < 4; ++taken) {
    Loader loader(source, {.batch_size = 8, .workers = 3, .ahead = {.batches = 4}});
    for (int i = 0; i < taken; ++i) loader.next();
  }
}

TEST(Loader, MemoryIsUsedAgainOnlyWhenNobodyHoldsIt) {
  for (const int workers : {0, 2}) {
    Loader loader(std::make_shared<NumberedImages>(64), {.batch_size = 2, .shuffle = false, .workers = workers});
    const Batch held = loader.next();
    const at::Tensor view = loader.next().images.slice(0, 1, 2);
    const at::Tensor alias = loader.next().images.tensor_data();  // shares the memory, but not the tensor
    const at::Tensor held_copy = held.images.clone(), view_copy = view.clone(), alias_copy = alias.clone();
    std::vector<void*> places;
    for (int step = 0; step < 20; ++step) places.push_back(loader.next().images.data_ptr());
    EXPECT_TRUE(at::equal(held.images, held_copy)) << workers << " workers";
    EXPECT_TRUE(at::equal(view, view_copy)) << "a view keeps its memory; " << workers << " workers";
    EXPECT_TRUE(at::equal(alias, alias_copy)) << "an alias keeps its memory; " << workers << " workers";
    std::sort(places.begin(), places.end());
    places.erase(std::unique(places.begin(), places.end()), places.end());
    EXPECT_LE(places.size(), 3u) << workers << " workers";
  }
}

TEST(Loader, WaitingIsCounted) {
  const auto source = std::make_shared<NumberedImages>(8);
  source->slowness_us = 5000;
  for (const int workers : {0, 1}) {
    Loader loader(source, {.batch_size = 8, .workers = workers});
    EXPECT_EQ(loader.waited_seconds(), 0);
    // A worker may be done before it is asked, if this thread was kept from running.
    for (int batch = 0; batch < 100 && loader.waited_seconds() <= 0.02; ++batch) loader.next();
    EXPECT_GT(loader.waited_seconds(), 0.02) << workers << " workers";
  }
}

TEST(Loader, SeveralIntervalsOfSamplesComeInTheirOrder) {
  const auto source = std::make_shared<NumberedImages>(20);
  for (const int workers : {0, 2}) {
    Loader loader(source,
                  {.batch_size = 10, .samples = {{6, 8}, {1, 2}, {9, 10}}, .shuffle = false, .workers = workers});
    EXPECT_EQ(labels_of(loader.next()), (std::vector<std::int64_t>{6, 7, 1, 9}));
    EXPECT_EQ(labels_of(loader.next()), (std::vector<std::int64_t>{16, 17, 11, 19}));
  }
}

std::shared_ptr<const ImageSource> augmented_masks() {
  const auto plain = std::make_shared<SyntheticImages>(
      SyntheticOptions{.classes = 3, .height = 24, .width = 24, .size = 8, .mask_classes = 3});
  return std::make_shared<Augmented>(plain, AugmentOptions{.flip_horizontal = true, .rotate = true, .crop_min = 0.3});
}

TEST(Loader, MasksBelongToTheirImagesAndToTheEpoch) {
  const auto source = augmented_masks();
  for (const auto dtype : {at::kLong, at::kByte}) {
    Loader loader(source, {.batch_size = 4, .shuffle = false, .mask_dtype = dtype, .workers = 2});
    for (std::int64_t step = 0; step < 6; ++step) {
      const Batch batch = loader.next();
      ASSERT_EQ(batch.masks.sizes(), at::IntArrayRef({4, 24, 24}));
      ASSERT_EQ(batch.masks.scalar_type(), dtype);
      for (std::int64_t i = 0; i < 4; ++i) {
        const ReadKey key(step % 2 * 4 + i, step / 2);
        EXPECT_TRUE(at::equal(batch.images[i], read_whole(*source, key, at::kFloat))) << "step " << step;
        EXPECT_TRUE(at::equal(batch.masks[i], read_whole_mask(*source, key, dtype))) << "step " << step;
      }
    }
  }
}

TEST(Loader, AMasksPartIsTheCropOfTheWhole) {
  const auto source = augmented_masks();
  Loader whole(source, {.batch_size = 4, .mask_dtype = at::kLong});
  Loader part(source, {.batch_size = 4, .part = image_box({1, 3}, {5, 20}, {11, 24}), .mask_dtype = at::kLong});
  for (int step = 0; step < 5; ++step)
    EXPECT_TRUE(at::equal(part.next().masks, crop(whole.next().masks.slice(0, 1, 3), {5, 20}, {11, 24})));
}

TEST(Loader, MasksMayHaveAPartOfTheirOwn) {
  const auto source = augmented_masks();
  Loader whole(source, {.batch_size = 4, .mask_dtype = at::kByte});
  const Box images = image_box({1, 3}, {5, 20}, {11, 24}), masks = image_box({0, 0}, {7, 18}, {0, 13});
  Loader part(source, {.batch_size = 4, .part = images, .mask_dtype = at::kByte, .mask_part = masks});
  const Box no_pixels = image_box({1, 3}, {0, 0}, {0, 0});
  Loader without_images(source, {.batch_size = 4, .part = no_pixels, .mask_dtype = at::kByte, .mask_part = masks});
  for (int step = 0; step < 3; ++step) {
    const Batch all = whole.next(), mine = part.next();
    EXPECT_TRUE(at::equal(mine.images, crop(all.images.slice(0, 1, 3), images.height(), images.width())));
    EXPECT_TRUE(at::equal(mine.masks, crop(all.masks.slice(0, 1, 3), masks.height(), masks.width())));
    EXPECT_TRUE(at::equal(without_images.next().masks, mine.masks)) << "a rank that reads no image";
  }
}

TEST(Loader, AHeldMaskKeepsItsMemory) {
  Loader loader(augmented_masks(), {.batch_size = 4, .mask_dtype = at::kLong});
  const at::Tensor held = loader.next().masks, copy = held.clone();
  for (int step = 0; step < 5; ++step) loader.next();
  EXPECT_TRUE(at::equal(held, copy));
}

TEST(Loader, MasksAreReadOnlyWhenAskedForAndRefusedWhenThereAreNone) {
  EXPECT_FALSE(Loader(augmented_masks(), {.batch_size = 4}).next().masks.defined());
  EXPECT_THROW(Loader(std::make_shared<NumberedImages>(8), {.mask_dtype = at::kLong}), UsageError);
  EXPECT_THROW(Loader(augmented_masks(), {.mask_dtype = at::kFloat}), UsageError);
}

TEST(Loader, OptionsThatDoNotFitTheSourceAreRefused) {
  const auto source = std::make_shared<NumberedImages>(8);
  EXPECT_THROW(Loader(source, {.batch_size = 9}), UsageError);
  EXPECT_THROW(Loader(source, {.batch_size = 0}), UsageError);
  EXPECT_THROW(Loader(source, {.workers = -1}), UsageError);
  EXPECT_THROW(Loader(source, {.dtype = at::kHalf}), UsageError);
  EXPECT_THROW(Loader(source, {.part = image_box({0, 1}, {0, 5}, {0, 6})}), Error);
  EXPECT_THROW(Loader(source, {.part = image_box({0, 2}, {0, 0}, {0, 6})}), Error) << "an empty side hides nothing";
}

}  // namespace
}  // namespace tessera
