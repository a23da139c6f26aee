// Batches for one rank: the right images in the right order, only the part that the rank needs, ahead of time.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include "tessera/base/read_ahead.h"
#include "tessera/data/image_source.h"

namespace tessera {

struct LoaderOptions {
  // What the batches are.

  /// Images in a batch over all ranks.
  std::int64_t batch_size = 1;
  /// What this rank needs of a batch: the samples (numbered within the batch), rows and columns. Nothing set: all of
  /// it. Empty rows or columns give labels and images without pixels; no samples give empty tensors.
  std::optional<Box> part = std::nullopt;
  /// Several intervals of samples in place of the part's one, in the order in which they are to lie.
  std::vector<Interval> samples = {};
  /// A batch in several pieces, one per next(), each a box like `part`, and in this order: for a rank that works
  /// through its images tile by tile and need not hold them whole. Nothing set: one, of `part` and `samples`.
  std::vector<Box> pieces = {};
  /// The order is a function of (seed, epoch), or that of the source when shuffle is off.
  std::uint64_t seed = 0;
  bool shuffle = true;
  /// at::kFloat or at::kDouble.
  at::ScalarType dtype = at::kFloat;
  /// Where batches are handed over, and images in which type; nothing set: as they are read. Workers bring them to a
  /// GPU ahead of time, through pinned memory. A GPU without a number is the one that is current where the loader is
  /// made.
  std::optional<at::TensorOptions> deliver = std::nullopt;
  /// Images have several labels, of so many classes: Batch::labels is [samples, classes], 1 where an image has the
  /// label. 0: one label each.
  std::int64_t label_sets_of = 0;
  /// Masks, too: at::kLong or at::kByte. Nothing set: none are read.
  std::optional<at::ScalarType> mask_dtype = std::nullopt;
  /// The rows and columns of the masks, where they are others than those of the images: a rank that reads an image with
  /// a margin has labels for its own tile only. The samples are the same. Nothing set: as the images.
  std::optional<Box> mask_part = std::nullopt;

  // How fast they come. Nothing here changes them.

  /// finish() where batches are handed over: (image, its bytes there, where its values go). Then images travel as bytes
  /// where they are bytes. Nothing set: as values.
  std::function<void(const RawImage&, const at::Tensor& bytes, const at::Tensor& out)> finish_there = nullptr;
  /// Threads that read ahead; 0 reads inside next(). They share the images of a batch, and large ones in bands.
  int workers = 0;
  /// Read only when there are workers; at least one batch. Bytes are counted where images are handed over.
  ReadAhead ahead = {};
  /// What each worker holds while it lives: whose memory its tensors count as, say.
  std::function<std::shared_ptr<void>()> worker_scope = nullptr;
};

/// Or a piece of one: see LoaderOptions::pieces.
struct Batch {
  at::Tensor images;  ///< [samples, channels, rows, columns], channels-last
  at::Tensor labels;  ///< [samples], int64; or as LoaderOptions::label_sets_of says
  at::Tensor masks;   ///< [samples, rows, columns] of LoaderOptions::mask_dtype; undefined when that is not set
  std::int64_t epoch = 0;
  std::int64_t first_sample = 0;  ///< where the first of these samples stands in the order of the epoch
};

/// A row of LoaderOptions::label_sets_of, on the CPU. Of an image whose labels are not known it is zero.
void fill_label_set(const ImageSource& source, std::int64_t index, const at::Tensor& row);

/// An endless sequence of batches. Batch s of an epoch holds the positions [s, s+1) * batch_size of the epoch's order.
/// The images that are left over when batch_size does not divide the set are dropped for that epoch; the next epoch
/// follows.
///
/// A batch's memory is used again once nobody else holds its tensors or a view of them; so hold the batch until an
/// asynchronous copy out of it is done.
/// Thread safety: next() and start_at() are for one thread at a time; several loaders may share a source.
class Loader {
 public:
  /// Throws UsageError when the options do not fit the source.
  Loader(std::shared_ptr<const ImageSource> source, const LoaderOptions& options);
  /// Waits at most for the images that workers are reading at this moment.
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  /// The next batch, or piece. What the source threw while reading it, on whatever thread, is thrown from here; the
  /// call after that goes on with the one behind it.
  Batch next();
  /// Makes `step` (counted from the start of epoch 0) the next batch, from its first piece on. What was read ahead is
  /// thrown away.
  void start_at(std::int64_t step);

  std::int64_t batches_per_epoch() const { return source_->size() / options_.batch_size; }
  /// Seconds that next() has taken in all: time in which nothing was there to train on.
  double waited_seconds() const { return waited_seconds_; }

 private:
  /// What one next() gives of a batch. Pieces are counted through all batches: number n is piece n % pieces of batch
  /// n / pieces.
  struct Piece {
    Box part, mask_part;
    std::vector<std::int64_t> positions;  // of the samples within the batch
    bool as_bytes = false;                // its images travel as bytes
    std::int64_t bands = 1;               // of an image
    std::int64_t samples() const { return static_cast<std::int64_t>(positions.size()); }
    bool has_pixels() const { return samples() > 0 && !part.height().empty() && !part.width().empty(); }
    /// Without samples it still has a task, so that its slot gets done.
    std::int64_t tasks() const { return std::max<std::int64_t>(1, samples() * bands); }
  };
  /// A piece under way; number n lives in slot n % slots.
  struct Slot {
    const Piece* piece = nullptr;
    Batch batch;
    at::Tensor bytes;                  // [samples, bytes of an image], where images travel so
    std::vector<at::Tensor> no_bytes;  // images of that piece that are not made of bytes, by sample
    std::int64_t tasks_left = 0;
    std::exception_ptr error;
  };
  /// A band of one sample of one piece: what a worker does at a time.
  struct Task {
    std::int64_t piece, number;
  };
  /// What a piece is read into: flat, and large enough for any of them.
  struct Buffers {
    at::Tensor images, labels, masks, bytes;
    bool free() const;
  };

  void check_options() const;
  Piece make_piece(const Box& part, const std::vector<Interval>& samples) const;
  void start_workers();
  bool to_gpu() const { return device_.is_cuda(); }
  const Piece& piece(std::int64_t number) const { return pieces_[static_cast<std::size_t>(number) % pieces_.size()]; }
  ReadKey key_of(const Slot& slot, std::int64_t sample) const;
  std::optional<RawImage> raw_of(const Slot& slot, std::int64_t sample) const;
  bool begins_with_bytes(const Piece& piece);
  /// The piece where it is wanted; returns when it is there.
  Batch delivered(const Slot& slot) const;
  at::Tensor there(const at::Tensor& t) const;
  at::Tensor images_there(const Slot& slot, at::ScalarType dtype) const;
  std::vector<std::int64_t> image_sizes(const Piece& piece) const;
  std::vector<std::int64_t> mask_sizes(const Piece& piece) const;
  std::vector<std::int64_t> label_sizes(const Piece& piece) const;
  std::vector<std::int64_t> byte_sizes(const Piece& piece) const;
  Buffers take_buffers();
  /// Without tensors.
  Slot blank_slot(std::int64_t number) const;
  Slot begin_piece(std::int64_t number);
  /// Of these rows of an image those of one of so many bands.
  static Interval band_of(Interval rows, std::int64_t band, std::int64_t bands, std::int64_t together);
  void read_band(Slot& slot, std::int64_t task);
  /// A place for the values of an image that is not made of bytes like the others.
  at::Tensor room_for_values(Slot& slot, std::int64_t sample);
  Batch read_now(std::int64_t number);
  Batch wait_for(std::int64_t number);
  Slot& slot_of(std::int64_t number) { return slots_[static_cast<std::size_t>(number) % slots_.size()]; }
  void work();
  void run_task(std::unique_lock<std::mutex>& lock, Task task);

  std::shared_ptr<const ImageSource> source_;
  LoaderOptions options_;
  std::vector<Piece> pieces_;  // of a batch
  at::Device device_ = at::kCPU;
  std::optional<c10::Stream> upload_stream_;  // set where workers upload
  PixelType type_ = PixelType::uint8;         // of what travels as bytes
  double waited_seconds_ = 0;

  std::mutex mutex_;  // guards what follows
  std::condition_variable worker_wakes_, consumer_wakes_;
  std::vector<Slot> slots_;
  std::vector<Buffers> buffers_;  // every buffer that was ever handed out
  std::int64_t next_ = 0;         // the piece to hand out
  Task upcoming_{0, 0};           // the next one for a worker to take
  int busy_workers_ = 0;
  bool paused_ = false, stopping_ = false;

  std::vector<std::thread> workers_;
};

}  // namespace tessera
