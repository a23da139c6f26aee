#include "tessera/data/loader.h"

#include <chrono>
#include <utility>

#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/accumulate.h>

#include "tessera/base/error.h"
#include "tessera/data/shuffle.h"

namespace tessera {
namespace {

/// A worker's work at a time, at least: a megabyte of float32.
constexpr std::int64_t values_per_band = 1 << 18;

/// Views share the storage but not the tensor, so both are counted.
bool only_holder(const at::Tensor& tensor) {
  return !tensor.defined() || (tensor.use_count() == 1 && tensor.storage().use_count() == 1);
}

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

void fill_label_set(const ImageSource& source, std::int64_t index, const at::Tensor& row) {
  row.zero_();
  const auto labels = source.label_set(index);
  if (!labels) return;
  for (const std::int64_t label : *labels) {
    ensure(0 <= label && label < row.size(0), "label ", label, " of ", row.size(0), " classes");
    row.data_ptr<std::int64_t>()[label] = 1;
  }
}

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
  as_bytes_ = options.finish_there && options.deliver && samples() > 0 && !part_.height().empty() &&
              !part_.width().empty() && begins_with_bytes();
  bands_ = std::clamp<std::int64_t>(channels * part_.height().size() * part_.width().size() / values_per_band, 1,
                                    std::max(1, options.workers));
  // A part without samples still has a task, so that its slot gets done.
  tasks_per_batch_ = std::max<std::int64_t>(1, samples() * bands_);

  if (options.deliver) device_ = options.deliver->device();
  if (to_gpu()) {
    const c10::impl::VirtualGuardImpl gpu(device_.type());
    if (!device_.has_index()) device_ = gpu.getDevice();
    if (options.workers > 0) upload_stream_ = gpu.getStreamFromGlobalPool(device_);
  }
  if (options.workers == 0) return;
  constexpr std::int64_t most_batches = 8;
  const std::int64_t batch_bytes = c10::multiply_integers(image_sizes()) *
                                   static_cast<std::int64_t>(c10::elementSize(
                                       options.deliver ? options.deliver->dtype().toScalarType() : options.dtype));
  slots_.resize(static_cast<std::size_t>(
      std::max<std::int64_t>(options.prefetch_batches,
                             std::min(most_batches, options.prefetch_bytes / std::max<std::int64_t>(1, batch_bytes)))));
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

Batch Loader::delivered(const Slot& slot) const {
  if (!options_.deliver) return slot.batch;
  const at::ScalarType dtype = options_.deliver->dtype().toScalarType();
  Batch out = slot.batch;
  if (!to_gpu()) {
    out.images = images_there(slot, dtype);
    return out;
  }
  const c10::DeviceGuard device(device_);
  const c10::Stream stream =
      upload_stream_ ? *upload_stream_ : c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
  const c10::StreamGuard on_stream(stream);
  out.images = images_there(slot, dtype);
  out.labels = there(slot.batch.labels);
  out.masks = there(slot.batch.masks);
  stream.synchronize();
  return out;
}

at::Tensor Loader::there(const at::Tensor& t) const {
  return t.defined() ? t.to(device_, t.scalar_type(), /*non_blocking=*/true) : t;
}

at::Tensor Loader::images_there(const Slot& slot, at::ScalarType dtype) const {
  // Rounded on the GPU, which has the time for it.
  if (!as_bytes_) return there(slot.batch.images).to(dtype);
  const at::Tensor bytes = there(slot.bytes);
  const at::Tensor images =
      at::empty(image_sizes(), at::TensorOptions().dtype(dtype).device(device_), at::MemoryFormat::ChannelsLast);
  for (std::int64_t i = 0; i < samples(); ++i)
    if (const at::Tensor& values = slot.no_bytes[static_cast<std::size_t>(i)]; values.defined())
      images.select(0, i).copy_(there(values).select(0, 0));
    else
      options_.finish_there(*raw_of(slot.batch, i), bytes.select(0, i), images.select(0, i));
  return images;
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

bool Loader::Buffers::free() const {
  return only_holder(images) && only_holder(labels) && only_holder(masks) && only_holder(bytes);
}

std::vector<std::int64_t> Loader::image_sizes() const {
  return {samples(), source_->image_shape()[0], part_.height().size(), part_.width().size()};
}

Loader::Buffers Loader::take_buffers() {
  for (const Buffers& buffers : buffers_)
    if (buffers.free()) return buffers;
  const at::TensorOptions host = at::TensorOptions().dtype(options_.dtype).pinned_memory(to_gpu());
  Buffers fresh;
  if (as_bytes_) {
    fresh.bytes = at::empty({samples(), bytes_of(type_) * c10::multiply_integers(image_sizes()) / samples()},
                            host.dtype(at::kByte));
  } else {
    fresh.images = at::empty(image_sizes(), host, at::MemoryFormat::ChannelsLast);
  }
  fresh.labels = options_.label_sets_of > 0 ? at::empty({samples(), options_.label_sets_of}, host.dtype(at::kLong))
                                            : at::empty({samples()}, host.dtype(at::kLong));
  if (options_.mask_dtype)
    fresh.masks =
        at::empty({samples(), mask_part_.height().size(), mask_part_.width().size()}, host.dtype(*options_.mask_dtype));
  buffers_.push_back(fresh);
  return fresh;
}

Batch Loader::blank_batch(std::int64_t step) const {
  Batch batch;
  batch.epoch = step / batches_per_epoch();
  batch.first_sample = step % batches_per_epoch() * options_.batch_size;
  if (!positions_.empty()) batch.first_sample += positions_.front();
  return batch;
}

Loader::Slot Loader::begin_batch(std::int64_t step) {
  Slot slot;
  slot.tasks_left = tasks_per_batch_;
  slot.batch = blank_batch(step);
  slot.no_bytes.resize(positions_.size());
  try {
    const Buffers buffers = take_buffers();
    slot.batch.images = buffers.images;
    slot.batch.labels = buffers.labels;
    slot.batch.masks = buffers.masks;
    slot.bytes = buffers.bytes;
  } catch (...) {
    slot.error = std::current_exception();
  }
  return slot;
}

ReadKey Loader::key_of(const Batch& batch, std::int64_t sample) const {
  const std::int64_t position = batch.first_sample + positions_[static_cast<std::size_t>(sample)] - positions_.front();
  return {options_.shuffle ? Shuffle(source_->size(), options_.seed, batch.epoch)(position) : position, batch.epoch};
}

std::optional<RawImage> Loader::raw_of(const Batch& batch, std::int64_t sample) const {
  auto raw = source_->raw(key_of(batch, sample), part_.height(), part_.width());
  return raw && raw->type == type_ ? raw : std::nullopt;
}

// What one image is, the others are, or nearly all. Whoever reads it will hear what is wrong with it.
bool Loader::begins_with_bytes() {
  try {
    const auto raw = source_->raw(key_of(blank_batch(0), 0), part_.height(), part_.width());
    if (raw) type_ = raw->type;
    return raw.has_value();
  } catch (const Error&) {
    return false;
  }
}

// Bands begin at multiples of what the file can be read in; a file that cannot has one.
Interval Loader::band_of(Interval rows, std::int64_t band, std::int64_t together) const {
  if (bands_ == 1 || together == 0) return band == 0 ? rows : Interval{rows.end, rows.end};
  const auto border = [&](std::int64_t b) {
    if (b == bands_) return rows.end;
    return std::clamp((rows.begin + rows.size() * b / bands_) / together * together, rows.begin, rows.end);
  };
  return {band == 0 ? rows.begin : border(band), border(band + 1)};
}

at::Tensor Loader::room_for_values(Slot& slot, std::int64_t sample) {
  const std::lock_guard lock(mutex_);
  at::Tensor& room = slot.no_bytes[static_cast<std::size_t>(sample)];
  if (!room.defined()) {
    std::vector<std::int64_t> sizes = image_sizes();
    sizes[0] = 1;
    room = at::empty(sizes, at::TensorOptions().dtype(options_.dtype).pinned_memory(to_gpu()),
                     at::MemoryFormat::ChannelsLast);
  }
  return room.select(0, 0);
}

void Loader::read_band(Slot& slot, std::int64_t sample, std::int64_t band) {
  if (sample >= samples()) return;
  const ReadKey key = key_of(slot.batch, sample);
  if (band == 0) {
    if (options_.label_sets_of > 0)
      fill_label_set(*source_, key.index, slot.batch.labels.select(0, sample));
    else
      slot.batch.labels.data_ptr<std::int64_t>()[sample] = source_->label(key.index);
  }
  const auto read_values = [&](const at::Tensor& image) {
    const Interval rows = band_of(part_.height(), band, bands_ == 1 ? 0 : source_->band_rows(key));
    if (!rows.empty() && image.numel() > 0)
      source_->read(key, rows, part_.width(), image.narrow(1, rows.begin - part_.height().begin, rows.size()));
  };
  if (!as_bytes_) {
    read_values(slot.batch.images.select(0, sample));
  } else if (const auto raw = raw_of(slot.batch, sample)) {
    const Interval rows = band_of(raw->rows, band, raw->band_rows);
    if (!rows.empty())
      source_->read_bytes(key.index, rows, raw->columns,
                          slot.bytes.select(0, sample).data_ptr<std::uint8_t>() +
                              (rows.begin - raw->rows.begin) * raw->columns.size() * raw->pixel_bytes());
  } else {
    read_values(room_for_values(slot, sample));
  }
  // In one piece, beside the image's bands: a mask may be of another kind of file.
  if (band + 1 == bands_ && slot.batch.masks.defined() && slot.batch.masks.numel() > 0)
    source_->read_mask(key, mask_part_.height(), mask_part_.width(), slot.batch.masks.select(0, sample));
}

Batch Loader::read_now(std::int64_t step) {
  Slot slot = begin_batch(step);
  if (slot.error) std::rethrow_exception(slot.error);
  for (std::int64_t task = 0; task < tasks_per_batch_; ++task) read_band(slot, task / bands_, task % bands_);
  return delivered(slot);
}

Batch Loader::wait_for(std::int64_t step) {
  std::unique_lock lock(mutex_);
  Slot& slot = slot_of(step);
  consumer_wakes_.wait(lock, [&] { return step < upcoming_.step && slot.tasks_left == 0; });
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
    if (task.number == 0) slot_of(task.step) = begin_batch(task.step);
    upcoming_ = task.number + 1 < tasks_per_batch_ ? Task{task.step, task.number + 1} : Task{task.step + 1, 0};
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
      read_band(slot, task.number / bands_, task.number % bands_);
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
      slot.bytes.reset();  // for the next batch
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
