// A batch that comes in pieces has the bits of one that comes whole, and no piece is read before it is near.
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <chrono>
#include <set>
#include <thread>

#include "reading.h"
#include "support/byte_images.h"
#include "support/recorded_images.h"
#include "tessera/base/error.h"
#include "tessera/data/augmented.h"
#include "tessera/data/loader.h"

namespace tessera {
namespace {

using test::ByteImages;
using test::RecordedImages;

/// Two micros of uneven tiles that overlap, then one pixel of all samples, and nothing.
std::vector<Box> uneven_pieces() {
  std::vector<Box> pieces;
  for (const Interval samples : {Interval{0, 2}, Interval{2, 3}})
    for (const Interval rows : {Interval{0, 9}, Interval{7, 24}})
      for (const Interval columns : {Interval{0, 5}, Interval{3, 17}, Interval{15, 24}})
        pieces.push_back(image_box(samples, rows, columns));
  pieces.push_back(image_box({0, 4}, {23, 24}, {0, 1}));
  pieces.push_back(image_box({1, 2}, {0, 0}, {0, 0}));
  pieces.push_back(image_box({2, 2}, {0, 24}, {0, 24}));
  return pieces;
}

void expect_piece(const Batch& piece, const Batch& whole, const Box& box) {
  const auto of_samples = [&](const at::Tensor& t) { return t.slice(0, box.batch().begin, box.batch().end); };
  EXPECT_TRUE(at::equal(piece.images, crop(of_samples(whole.images), box.height(), box.width()))) << box;
  EXPECT_TRUE(at::equal(piece.labels, of_samples(whole.labels))) << box;
  EXPECT_TRUE(box.empty() || piece.images.is_contiguous(at::MemoryFormat::ChannelsLast)) << box;
  if (whole.masks.defined()) {
    EXPECT_TRUE(at::equal(piece.masks, crop(of_samples(whole.masks), box.height(), box.width()))) << box;
  }
  EXPECT_EQ(piece.epoch, whole.epoch);
  EXPECT_TRUE(box.batch().empty() || piece.first_sample == whole.first_sample + box.batch().begin);
}

/// Three batches and the beginning of the next, then others.
void expect_pieces_of_the_whole(const std::shared_ptr<const ImageSource>& source, const LoaderOptions& options,
                                const std::vector<Box>& pieces) {
  for (const int workers : {0, 1, 3}) {
    SCOPED_TRACE(concat(workers, " workers"));
    Loader whole(source, options);
    LoaderOptions in_pieces = options;
    in_pieces.pieces = pieces;
    in_pieces.workers = workers;
    Loader loader(source, in_pieces);
    for (const std::int64_t start : {0, 7, 1}) {
      if (start > 0) {
        for (std::size_t i = 0; i < pieces.size() / 2; ++i) loader.next();
        loader.start_at(start);
        whole.start_at(start);
      }
      for (int step = 0; step < 3; ++step) {
        const Batch batch = whole.next();
        for (const Box& box : pieces) expect_piece(loader.next(), batch, box);
      }
    }
  }
}

/// On a CPU, what a GPU does on one.
LoaderOptions travelling_as_bytes(LoaderOptions options) {
  options.deliver = at::TensorOptions().dtype(options.dtype);
  options.finish_there = [](const RawImage& raw, const at::Tensor& bytes, const at::Tensor& out) {
    finish(raw, bytes.data_ptr<std::uint8_t>(), out);
  };
  return options;
}

TEST(LoaderPieces, AreCutOutOfTheWholeBatch) {
  const auto images = std::make_shared<ByteImages>(9, 24, 24);
  const LoaderOptions options{.batch_size = 4, .seed = 3, .mask_dtype = at::kByte};
  expect_pieces_of_the_whole(images, options, uneven_pieces());
  expect_pieces_of_the_whole(images, {.batch_size = 4, .dtype = at::kDouble}, uneven_pieces());
  expect_pieces_of_the_whole(images, {.batch_size = 4, .shuffle = false, .label_sets_of = 10}, uneven_pieces());
}

TEST(LoaderPieces, TravelAsBytesLikeTheWhole) {
  const LoaderOptions options{.batch_size = 4, .seed = 3, .mask_dtype = at::kByte};
  expect_pieces_of_the_whole(std::make_shared<ByteImages>(9, 24, 24), travelling_as_bytes(options), uneven_pieces());
  expect_pieces_of_the_whole(std::make_shared<ByteImages>(9, 24, 24, /*odd=*/4), travelling_as_bytes(options),
                             uneven_pieces());
}

TEST(LoaderPieces, OfTurnedAndStretchedImagesAreCutOutOfThem) {
  const auto images = std::make_shared<ByteImages>(9, 24, 24);
  const AugmentOptions turned{
      .seed = 5, .flip_horizontal = true, .flip_vertical = true, .rotate = true, .brightness = 0.3, .contrast = 0.2};
  AugmentOptions stretched = turned;
  stretched.crop_min = 0.3;
  for (const auto& augment : {turned, stretched}) {
    const auto augmented = std::make_shared<Augmented>(images, augment);
    const LoaderOptions options{.batch_size = 4, .mask_dtype = at::kByte};
    expect_pieces_of_the_whole(augmented, options, uneven_pieces());
    expect_pieces_of_the_whole(augmented, travelling_as_bytes(options), uneven_pieces());
  }
}

TEST(LoaderPieces, OfAMegabyteAreReadInBands) {
  const auto large = std::make_shared<ByteImages>(4, 700, 500);
  large->together = 64;
  const std::vector<Box> pieces{image_box({0, 1}, {0, 650}, {0, 500}), image_box({0, 2}, {600, 700}, {490, 500}),
                                image_box({1, 2}, {10, 690}, {3, 480})};
  expect_pieces_of_the_whole(large, travelling_as_bytes({.batch_size = 2}), pieces);
  EXPECT_GT(large->bands().size(), 4u) << "more than begin a piece";
}

TEST(LoaderPieces, GoOnBehindOneThatCannotBeRead) {
  const auto images = std::make_shared<RecordedImages>(std::make_shared<ByteImages>(8, 24, 24));
  const std::vector<Box> pieces{image_box({0, 2}, {0, 10}, {0, 24}), image_box({0, 2}, {10, 24}, {0, 24}),
                                image_box({2, 4}, {0, 24}, {0, 24})};
  const LoaderOptions options{.batch_size = 4, .shuffle = false};
  for (const int workers : {0, 1, 3}) {
    Loader whole(images, options);
    images->broken_pixel = {-1, -1, -1};
    const Batch first = whole.next(), second = whole.next();
    images->broken_pixel = {1, 12, 5};
    LoaderOptions in_pieces = options;
    in_pieces.pieces = pieces;
    in_pieces.workers = workers;
    Loader loader(images, in_pieces);
    expect_piece(loader.next(), first, pieces[0]);
    EXPECT_THROW(loader.next(), UsageError) << workers << " workers";
    expect_piece(loader.next(), first, pieces[2]);
    for (const Box& box : pieces) expect_piece(loader.next(), second, box);
  }
}

TEST(LoaderPieces, AreReadOnlySoFarAhead) {
  const auto images = std::make_shared<RecordedImages>(std::make_shared<ByteImages>(8, 64, 64));
  LoaderOptions options{.batch_size = 1, .workers = 1, .ahead = {.batches = 2}};
  for (std::int64_t y = 0; y < 64; y += 8) options.pieces.push_back(image_box({0, 1}, {y, y + 8}, {0, 64}));
  const std::int64_t piece_bytes = 3 * 8 * 64 * 4;
  for (const std::size_t ahead : {2, 5}) {
    options.ahead.bytes = static_cast<std::int64_t>(ahead) * piece_bytes;
    Loader loader(images, options);
    loader.next();
    std::vector<RecordedImages::Read> reads;
    // As many as there may be, and then no more, however long nobody asks.
    for (int wait = 0; wait < 200 && (wait < 20 || reads.size() < 1 + ahead); ++wait) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      for (const auto& read : images->take_reads()) reads.push_back(read);
    }
    EXPECT_EQ(reads.size(), 1 + ahead);
    for (std::size_t i = 0; i < reads.size(); ++i) EXPECT_EQ(reads[i].rows.begin, 8 * static_cast<std::int64_t>(i));
  }
}

TEST(LoaderPieces, OfAllSizesUseTheSameMemoryAgain) {
  const auto images = std::make_shared<ByteImages>(8, 24, 24);
  for (const int workers : {0, 2}) {
    Loader loader(images, {.batch_size = 4, .pieces = uneven_pieces(), .workers = workers});
    std::set<void*> places;
    for (std::size_t i = 0; i < 4 * uneven_pieces().size(); ++i) {
      const Batch piece = loader.next();
      if (piece.images.numel() > 0) places.insert(piece.images.data_ptr());
    }
    EXPECT_LE(places.size(), 3u) << "one is looked at and two are read ahead; " << workers << " workers";
    const Batch held = loader.next();
    const at::Tensor copy = held.images.clone();
    for (std::size_t i = 0; i < 2 * uneven_pieces().size(); ++i) loader.next();
    EXPECT_TRUE(at::equal(held.images, copy)) << "what is held is left alone";
  }
}

TEST(LoaderPieces, ThatDoNotFitTheBatchAreRefused) {
  const auto images = std::make_shared<ByteImages>(8, 24, 24);
  const Box inside = image_box({0, 1}, {0, 24}, {0, 24}), outside = image_box({0, 1}, {0, 25}, {0, 24});
  EXPECT_THROW(Loader(images, {.batch_size = 4, .pieces = {inside, outside}}), Error);
  EXPECT_THROW(Loader(images, {.batch_size = 4, .part = inside, .pieces = {inside}}), Error);
}

}  // namespace
}  // namespace tessera
