#include "tessera/data/loader.h"

#include <chrono>
#include <utility>

#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "tessera/base/error.h"
#include "tessera/data/shuffle.h"

namespace tessera {
namespace {

/// Views share the storage but not the tensor, so both are counted.
bool only_holder(const at::Tensor& tensor) { return tensor.use_count() == 1 && tensor.storage().use_count() == 1; }

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
  const auto [channels, height, width] = source_->image_shape();
  require(options.batch_size >= 1, "a batch of ", options.batch_size, " images cannot be read; see --batch-size");
  require(options.batch_size <= source_->size(), "a batch of ", options.batch_size, " images is more than the ",
          source_->size(), " of the set (", source_->describe(), "); use a smaller --batch-size");
  require(options.workers >= 0, "cannot read with ", options.workers, " threads; use 0 or more --num-workers");
  require(options.prefetch_batches >= 1, "cannot read ", options.prefetch_batches, " batches ahead; use 1 or more");
  require(options.dtype == at::kFloat || options.dtype == at::kDouble, "images are read as float or double, not ",
          options.dtype);
  if (options.mask_dtype) {
    require(source_->mask_classes() >= 1, "there are no masks in the set (", source_->describe(), ")");
    require(options.mask_dtype == at::kLong || options.mask_dtype == at::kByte,
            "masks are read as int64 or uint8, not ", *options.mask_dtype);
  }

  const Box whole = image_box({0, options.batch_size}, {0, height}, {0, width});
  part_ = options.part.value_or(whole);
  // Side by side, because a part with one empty side must still have the others inside.
  for (const Axis axis : {Axis::batch, Axis::height, Axis::width})
    ensure(whole[axis].contains(part_[axis]), "part ", part_, " reaches outside the batch ", whole);
  mask_part_ = options.mask_part.value_or(part_);
  for (const Axis axis : {Axis::height, Axis::width})
    ensure(whole[axis].contains(mask_part_[axis]), "masks' part ", mask_part_, " reaches outside the batch ", whole);
  const auto intervals = options.samples.empty() ? std::vector<Interval>{part_.batch()} : options.samples;
  for (const Interval& interval : intervals) {
    ensure(whole.batch().contains(interval), "samples ", interval, " reach outside the batch ", whole);
    for (std::int64_t i = interval.begin; i < interval.end; ++i) positions_.push_back(i);
  }
  tasks_per_batch_ = std::max<std::int64_t>(1, static_cast<std::int64_t>(positions_.size()));

  if (options.deliver) device_ = options.deliver->device();
  if (to_gpu()) {
    const c10::impl::VirtualGuardImpl gpu(device_.type());
    if (!device_.has_index()) device_ = gpu.getDevice();
    if (options.workers > 0) upload_stream_ = gpu.getStreamFromGlobalPool(device_);
  }
  if (options.workers == 0) return;
  slots_.resize(static_cast<std::size_t>(options.prefetch_batches));
  try {
    for (int i = 0; i < options.workers; ++i)
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
  if (workers_.empty()) return read_now(step_++);
  Batch batch = wait_for(step_);
  if (upload_stream_) {
    // The memory belongs to the stream that filled it; it must not be used again before the reader's stream is through.
    const c10::Stream reader = c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
    for (at::Tensor* tensor : {&batch.images, &batch.labels, &batch.masks})
      if (tensor->defined()) tensor->record_stream(reader);
  }
  return batch;
}

Batch Loader::delivered(const Batch& batch) const {
  if (!options_.deliver) return batch;
  const at::ScalarType dtype = options_.deliver->dtype().toScalarType();
  Batch out = batch;
  if (!to_gpu()) {
    out.images = batch.images.to(dtype);
    return out;
  }
  const c10::DeviceGuard device(device_);
  const c10::Stream stream =
      upload_stream_ ? *upload_stream_ : c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
  const c10::StreamGuard on_stream(stream);
  const auto upload = [&](const at::Tensor& t) {
    return t.defined() ? t.to(device_, t.scalar_type(), /*non_blocking=*/true) : t;
  };
  // Rounded on the GPU, which has the time for it.
  out.images = upload(batch.images).to(dtype);
  out.labels = upload(batch.labels);
  out.masks = upload(batch.masks);
  stream.synchronize();
  return out;
}

void Loader::start_at(std::int64_t step) {
  require(step >= 0, "cannot start at step ", step);
  std::unique_lock lock(mutex_);
  paused_ = true;
  consumer_wakes_.wait(lock, [&] { return busy_workers_ == 0; });
  for (auto& slot : slots_) slot = Slot{};
  step_ = step;
  upcoming_ = {step, 0};
  paused_ = false;
  worker_wakes_.notify_all();
}

Batch Loader::take_buffers() {
  for (const auto& buffer : buffers_)
    if (only_holder(buffer.images) && only_holder(buffer.labels) &&
        (!buffer.masks.defined() || only_holder(buffer.masks)))
      return buffer;
  const auto samples = static_cast<std::int64_t>(positions_.size());
  const at::TensorOptions images = at::TensorOptions().dtype(options_.dtype).pinned_memory(to_gpu());
  Batch fresh;
  fresh.images = at::empty({samples, source_->image_shape()[0], part_.height().size(), part_.width().size()}, images,
                           at::MemoryFormat::ChannelsLast);
  fresh.labels = at::empty({samples}, images.dtype(at::kLong));
  if (options_.mask_dtype)
    fresh.masks =
        at::empty({samples, mask_part_.height().size(), mask_part_.width().size()}, images.dtype(*options_.mask_dtype));
  buffers_.push_back(fresh);
  return fresh;
}

Loader::Slot Loader::begin_batch(std::int64_t step) {
  Slot slot;
  slot.samples_left = tasks_per_batch_;
  try {
    slot.batch = take_buffers();
  } catch (...) {
    slot.error = std::current_exception();
  }
  slot.batch.epoch = step / batches_per_epoch();
  slot.batch.first_sample = step % batches_per_epoch() * options_.batch_size;
  if (!positions_.empty()) slot.batch.first_sample += positions_.front();
  return slot;
}

void Loader::read_sample(const Batch& batch, std::int64_t sample) const {
  const auto i = static_cast<std::size_t>(sample);
  if (i >= positions_.size()) return;  // A part without samples still has one task, so that its slot gets done.
  const std::int64_t position = batch.first_sample + positions_[i] - positions_.front();
  const std::int64_t index =
      options_.shuffle ? Shuffle(source_->size(), options_.seed, batch.epoch)(position) : position;
  batch.labels.data_ptr<std::int64_t>()[sample] = source_->label(index);
  const ReadKey key(index, batch.epoch);
  if (batch.images.numel() > 0) source_->read(key, part_.height(), part_.width(), batch.images.select(0, sample));
  if (batch.masks.defined() && batch.masks.numel() > 0)
    source_->read_mask(key, mask_part_.height(), mask_part_.width(), batch.masks.select(0, sample));
}

Batch Loader::read_now(std::int64_t step) {
  Slot slot = begin_batch(step);
  if (slot.error) std::rethrow_exception(slot.error);
  for (std::int64_t sample = 0; sample < tasks_per_batch_; ++sample) read_sample(slot.batch, sample);
  return delivered(slot.batch);
}

Batch Loader::wait_for(std::int64_t step) {
  std::unique_lock lock(mutex_);
  Slot& slot = slot_of(step);
  consumer_wakes_.wait(lock, [&] { return step < upcoming_.step && slot.samples_left == 0; });
  const Slot done = std::exchange(slot, Slot{});
  ++step_;
  worker_wakes_.notify_all();
  if (done.error) std::rethrow_exception(done.error);
  return done.batch;
}

void Loader::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    worker_wakes_.wait(lock, [&] {
      return stopping_ || (!paused_ && upcoming_.step < step_ + static_cast<std::int64_t>(slots_.size()));
    });
    if (stopping_) return;
    const Task task = upcoming_;
    if (task.sample == 0) slot_of(task.step) = begin_batch(task.step);
    upcoming_ = task.sample + 1 < tasks_per_batch_ ? Task{task.step, task.sample + 1} : Task{task.step + 1, 0};
    run_task(lock, task);
  }
}

/// Called and left with the lock held; reads without it.
void Loader::run_task(std::unique_lock<std::mutex>& lock, Task task) {
  // The slot cannot be handed out or cleared before this task counts itself off, so it stays where it is.
  Slot& slot = slot_of(task.step);
  std::exception_ptr error = slot.error;
  ++busy_workers_;
  lock.unlock();
  if (!error) {
    try {
      read_sample(slot.batch, task.sample);
    } catch (...) {
      error = std::current_exception();
    }
  }
  lock.lock();
  if (slot.samples_left == 1 && !error && !slot.error && options_.deliver) {
    // This was the last sample: nobody else looks at the slot before it is counted off.
    lock.unlock();
    try {
      slot.batch = delivered(slot.batch);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
  }
  --busy_workers_;
  if (!slot.error) slot.error = error;
  if (--slot.samples_left == 0 || busy_workers_ == 0) consumer_wakes_.notify_all();
}

}  // namespace tessera
