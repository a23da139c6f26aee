#include "tessera/runtime/rank_images.h"

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera {

RankImages::RankImages(const std::shared_ptr<const ImageSource>& source, const LoaderOptions& options,
                       const Executor& executor, std::vector<Interval> samples, Meter& meter)
    : samples_(std::move(samples)), meter_(meter) {
  const auto boxes = executor.image_boxes();
  if ((boxes.empty() && !executor.makes_loss()) || samples_.empty()) return;
  if (boxes.size() > 1)
    for (const Interval& share : samples_)
      for (Box box : boxes) {
        box[Axis::batch] = share;
        pieces_.push_back(box);
      }
  LoaderOptions whole = options;
  whole.samples = samples_;
  whole.part = boxes.size() == 1 ? boxes.front() : image_box({0, 0}, {0, 0}, {0, 0});
  (*whole.part)[Axis::batch] = {0, 0};
  if (executor.makes_loss())
    whole.mask_part = executor.loss_box();
  else
    whole.mask_dtype.reset();
  if (!pieces_.empty()) {
    LoaderOptions in_pieces = options;
    in_pieces.pieces = pieces_;
    in_pieces.mask_dtype.reset();
    tiles_ = std::make_unique<Loader>(source, in_pieces);
  }
  if (boxes.size() != 1) {
    whole.ahead.bytes = 0;                                              // is about images, and masks may be large
    if (!whole.mask_dtype) whole.workers = std::min(whole.workers, 1);  // labels alone are no work
  }
  batches_ = std::make_unique<Loader>(source, whole);
  piece_ = pieces_.size();
}

void RankImages::next_batch() {
  if (!reads()) return;
  const Meter::Timed timed(&meter_, Part::data);
  // After a failure some of the last batch may not have been asked for.
  if (piece_ < pieces_.size()) tiles_->start_at(step_);
  piece_ = 0;
  ++step_;
  batch_ = read_ = {};  // its memory is for the batch that will be read meanwhile
  batch_ = read_ = batches_->next();
  if (in_place_) put_in_place();
}

void RankImages::keep_in_place() {
  if (in_place_ || !reads()) return;
  in_place_ = batch_;
  for (at::Tensor* t : {&in_place_->images, &in_place_->labels, &in_place_->masks})
    if (t->defined()) *t = t->clone();
  put_in_place();
}

// A GPU copies when it gets there: what was read stays until the step is over.
void RankImages::put_in_place() {
  for (at::Tensor Batch::*t : {&Batch::images, &Batch::labels, &Batch::masks})
    if ((read_.*t).defined()) batch_.*t = ((*in_place_).*t).copy_(read_.*t);
}

void RankImages::start_at(std::int64_t step) {
  step_ = step;
  piece_ = pieces_.size();
  if (batches_) batches_->start_at(step);
  if (tiles_) tiles_->start_at(step);
}

at::Tensor RankImages::of_micro(const at::Tensor& all, int micro) const {
  const std::int64_t size = samples_[static_cast<std::size_t>(micro)].size();
  return all.defined() ? all.narrow(0, micro * size, size) : at::Tensor();
}

Executor::ImagesOf RankImages::images_of(int micro) {
  return [this, micro](const Box& box) { return tiles_ ? next_piece(micro, box) : of_micro(batch_.images, micro); };
}

at::Tensor RankImages::next_piece(int micro, const Box& box) {
  Box wanted = box;
  wanted[Axis::batch] = samples_[static_cast<std::size_t>(micro)];
  ensure(piece_ < pieces_.size() && pieces_[piece_] == wanted, "images ", wanted, " are not piece ", piece_,
         " of the batch");
  const Meter::Timed timed(&meter_, Part::data);
  ++piece_;
  return tiles_->next().images;
}

}  // namespace tessera
