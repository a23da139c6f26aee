// What a rank reads of each batch: labels, masks, and its images. A rank that works through several tiles in turn reads
// each tile's images by its own box when the tile's first turn begins, so that it never holds an image whole; the next
// tile's are read meanwhile. A rank of one tile reads them with the labels, a batch ahead.
//
//     batch        labels, masks
//     micro 0      tile 0 | tile 1 | tile 2 | ...      pieces, in the order in which forwards ask for them
//     micro 1      tile 0 | tile 1 | tile 2 | ...
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "tessera/base/meter.h"
#include "tessera/data/loader.h"
#include "tessera/runtime/executor.h"

namespace tessera {

/// Belongs to one thread, the rank's; one for each direction.
class RankImages {
 public:
  /// `options`: of the loaders, but for what follows from the rest: which parts are read, and which samples. With a
  /// type of masks, these are read where the loss is made. `samples`: by micro, numbered within the batch, as many of
  /// each. Waiting is counted by the meter, which must outlive it.
  RankImages(const std::shared_ptr<const ImageSource>& source, const LoaderOptions& options, const Executor& executor,
             std::vector<Interval> samples, Meter& meter);

  /// False where neither images nor labels are used: then there are no batches.
  bool reads() const { return batches_ != nullptr; }
  void next_batch();
  /// From now on every batch lies where this one does: for recorded kernels, which look there.
  void keep_in_place();
  void leave_place() { in_place_.reset(); }
  /// As Loader::start_at(), on a batch.
  void start_at(std::int64_t step);

  /// Of the present batch, without the images where they come in pieces.
  const Batch& batch() const { return batch_; }
  /// Of a tensor over the samples of the batch those of a micro; undefined of an undefined one.
  at::Tensor of_micro(const at::Tensor& all, int micro) const;
  /// What Executor::forward() asks. In pieces, micros are asked for one after the other, from 0, each once.
  Executor::ImagesOf images_of(int micro);

 private:
  at::Tensor next_piece(int micro, const Box& box);
  void put_in_place();

  const std::vector<Interval> samples_;  // by micro
  std::vector<Box> pieces_;              // of a batch; empty: its images come with it
  Meter& meter_;
  std::unique_ptr<Loader> batches_, tiles_;
  Batch read_, batch_;             // as it was read, and where it is looked at
  std::optional<Batch> in_place_;  // where all batches lie; nothing: where they were read
  std::int64_t step_ = 0;          // the next batch
  std::size_t piece_ = 0;          // the next one of the present batch; behind the last: none is missing
};

}  // namespace tessera
