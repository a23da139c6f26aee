#include "tessera/data/loader.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/accumulate.h>

#include "tessera/base/error.h"

namespace tessera {
namespace {

/// A worker's work at a time, at least: a megabyte of float32.
constexpr std::int64_t values_per_band = 1 << 18;

class AddsElapsed {
 public:
  explicit AddsElapsed(double& seconds) : seconds_(seconds) {}
  ~AddsElapsed() { seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count(); }
  AddsElapsed(const AddsElapsed&) = delete;
  AddsElapsed& operator=(const AddsElapsed&) = delete;

 private:
  double& seconds_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace

Loader::Loader(std::shared_ptr<const ImageSource> source, const LoaderOptions& options)
    : source_(std::move(source)), options_(options) {
  check_options();
  const auto [channels, height, width] = source_->image_shape();
  if (options.pieces.empty()) {
    const Box part = options.part.value_or(image_box({0, options.batch_size}, {0, height}, {0, width}));
    pieces_.push_back(make_piece(part, options.samples.empty() ? std::vector{part.batch()} : options.samples));
  }
  for (const Box& part : options.pieces) pieces_.push_back(make_piece(part, {part.batch()}));
  const auto shown = std::find_if(pieces_.begin(), pieces_.end(), [](const Piece& p) { return p.has_pixels(); });
  if (options.finish_there && options.deliver && shown != pieces_.end() && begins_with_bytes(*shown))
    for (Piece& p : pieces_) p.as_bytes = p.has_pixels();

  if (options.deliver) device_ = options.deliver->device();
  if (to_gpu()) {
    const c10::impl::VirtualGuardImpl gpu(device_.type());
    if (!device_.has_index()) device_ = gpu.getDevice();
    if (options.workers > 0) upload_stream_ = gpu.getStreamFromGlobalPool(device_);
  }
  if (options.workers > 0) start_workers();
}

void Loader::check_options() const {
  require(options_.batch_size >= 1, "a batch of ", options_.batch_size, " images cannot be read; see --batch-size");
  require(options_.batch_size <= source_->size(), "a batch of ", options_.batch_size, " images is more than the ",
          source_->size(), " of the set (", source_->describe(), "); use a smaller --batch-size");
  require(options_.workers >= 0, "cannot read with ", options_.workers, " threads; use 0 or more --num-workers");
  require(options_.ahead.batches >= 1, "cannot read ", options_.ahead.batches, " batches ahead; use 1 or more");
  require(options_.dtype == at::kFloat || options_.dtype == at::kDouble, "images are read as float or double, not ",
          options_.dtype);
  ensure(options_.pieces.empty() || (!options_.part && options_.samples.empty()),
         "a batch is read in pieces, or as one part of it, not both");
  if (!options_.mask_dtype) return;
  require(source_->mask_classes() >= 1, "there are no masks in the set (", source_->describe(), ")");
  require(options_.mask_dtype == at::kLong || options_.mask_dtype == at::kByte,
          "masks are read as int64 or uint8, not ", *options_.mask_dtype);
}

Loader::Piece Loader::make_piece(const Box& part, const std::vector<Interval>& samples) const {
  const auto [channels, height, width] = source_->image_shape();
  const Box whole = image_box({0, options_.batch_size}, {0, height}, {0, width});
  Piece out{.part = part, .mask_part = options_.mask_part.value_or(part), .positions = {}};
  // Side by side, because a part with one empty side must still have the others inside.
  for (const Axis axis : {Axis::batch, Axis::height, Axis::width})
    ensure(whole[axis].contains(part[axis]), "part ", part, " reaches outside the batch ", whole);
  for (const Axis axis : {Axis::height, Axis::width})
    ensure(whole[axis].contains(out.mask_part[axis]), "masks' part ", out.mask_part, " reaches outside the batch ",
           whole);
  for (const Interval& interval : samples) {
    ensure(whole.batch().contains(interval), "samples ", interval, " reach outside the batch ", whole);
    for (std::int64_t i = interval.begin; i < interval.end; ++i) out.positions.push_back(i);
  }
  out.bands = std::clamp<std::int64_t>(channels * part.height().size() * part.width().size() / values_per_band, 1,
                                       std::max(1, options_.workers));
  return out;
}

void Loader::start_workers() {
  const auto value_bytes = static_cast<std::int64_t>(
      c10::elementSize(options_.deliver ? options_.deliver->dtype().toScalarType() : options_.dtype));
  std::int64_t piece_bytes = 1;
  for (const Piece& p : pieces_)
    piece_bytes = std::max(piece_bytes, value_bytes * c10::multiply_integers(image_sizes(p)));
  slots_.resize(static_cast<std::size_t>(options_.ahead.pieces(piece_bytes, std::ssize(pieces_))));
  try {
    for (int i = 0; i < options_.workers; ++i)
      workers_.emplace_back([this] {
        const std::shared_ptr<void> scope = options_.worker_scope ? options_.worker_scope() : nullptr;
        work();
      });
  } catch (...) {
    stopping_ = true;  // No destructor runs for a half-made loader, and a joinable thread must not be dropped.
    worker_wakes_.notify_all();
    for (auto& worker : workers_) worker.join();
    throw;
  }
}

Loader::~Loader() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  worker_wakes_.notify_all();
  for (auto& worker : workers_) worker.join();
}

Batch Loader::next() {
  const AddsElapsed timer(waited_seconds_);
  if (workers_.empty()) return read_now(next_++);
  Batch batch = wait_for(next_);
  if (upload_stream_) {
    // The memory belongs to the stream that filled it; it must not be used again before the reader's stream is through.
    const c10::Stream reader = c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
    for (at::Tensor* tensor : {&batch.images, &batch.labels, &batch.masks})
      if (tensor->defined()) tensor->record_stream(reader);
  }
  return batch;
}

void Loader::start_at(std::int64_t step) {
  require(step >= 0, "cannot start at step ", step);
  std::unique_lock lock(mutex_);
  paused_ = true;
  consumer_wakes_.wait(lock, [&] { return busy_workers_ == 0; });
  for (auto& slot : slots_) slot = Slot{};
  next_ = step * std::ssize(pieces_);
  upcoming_ = {next_, 0};
  paused_ = false;
  worker_wakes_.notify_all();
}

Batch Loader::read_now(std::int64_t number) {
  Slot slot = begin_piece(number);
  if (slot.error) std::rethrow_exception(slot.error);
  for (std::int64_t task = 0; task < slot.piece->tasks(); ++task) read_band(slot, task);
  return delivered(slot);
}

Batch Loader::wait_for(std::int64_t number) {
  std::unique_lock lock(mutex_);
  Slot& slot = slot_of(number);
  consumer_wakes_.wait(lock, [&] { return number < upcoming_.piece && slot.tasks_left == 0; });
  const Slot done = std::exchange(slot, Slot{});
  ++next_;
  worker_wakes_.notify_all();
  if (done.error) std::rethrow_exception(done.error);
  return done.batch;
}

void Loader::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    worker_wakes_.wait(lock, [&] {
      return stopping_ || (!paused_ && upcoming_.piece < next_ + static_cast<std::int64_t>(slots_.size()));
    });
    if (stopping_) return;
    const Task task = upcoming_;
    if (task.number == 0) slot_of(task.piece) = begin_piece(task.piece);
    upcoming_ =
        task.number + 1 < piece(task.piece).tasks() ? Task{task.piece, task.number + 1} : Task{task.piece + 1, 0};
    run_task(lock, task);
  }
}

/// Called and left with the lock held; reads without it.
void Loader::run_task(std::unique_lock<std::mutex>& lock, Task task) {
  // The slot cannot be handed out or cleared before this task counts itself off, so it stays where it is.
  Slot& slot = slot_of(task.piece);
  std::exception_ptr error = slot.error;
  ++busy_workers_;
  lock.unlock();
  if (!error) {
    try {
      read_band(slot, task.number);
    } catch (...) {
      error = std::current_exception();
    }
  }
  lock.lock();
  if (slot.tasks_left == 1 && !error && !slot.error && options_.deliver) {
    // This was the last task: nobody else looks at the slot before it is counted off.
    lock.unlock();
    try {
      slot.batch = delivered(slot);
      slot.bytes.reset();  // for the next piece
      slot.no_bytes.clear();
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
  }
  --busy_workers_;
  if (!slot.error) slot.error = error;
  if (--slot.tasks_left == 0 || busy_workers_ == 0) consumer_wakes_.notify_all();
}

}  // namespace tessera
