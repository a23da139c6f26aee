// How a piece of a batch is read and brought to where it is wanted. When, and on which thread, is for loader.cpp.
#include <algorithm>

#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/accumulate.h>

#include "tessera/base/error.h"
#include "tessera/data/loader.h"
#include "tessera/data/shuffle.h"

namespace tessera {
namespace {

/// Views share the storage but not the tensor, so both are counted.
bool only_holder(const at::Tensor& tensor) {
  return !tensor.defined() || (tensor.use_count() == 1 && tensor.storage().use_count() == 1);
}

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

bool Loader::Buffers::free() const {
  return only_holder(images) && only_holder(labels) && only_holder(masks) && only_holder(bytes);
}

std::vector<std::int64_t> Loader::image_sizes(const Piece& p) const {
  return {p.samples(), source_->image_shape()[0], p.part.height().size(), p.part.width().size()};
}

std::vector<std::int64_t> Loader::mask_sizes(const Piece& p) const {
  return {p.samples(), p.mask_part.height().size(), p.mask_part.width().size()};
}

std::vector<std::int64_t> Loader::label_sizes(const Piece& p) const {
  return options_.label_sets_of > 0 ? std::vector{p.samples(), options_.label_sets_of} : std::vector{p.samples()};
}

std::vector<std::int64_t> Loader::byte_sizes(const Piece& p) const {
  const auto image = image_sizes(p);
  return {p.samples(), bytes_of(type_) * image[1] * image[2] * image[3]};
}

Loader::Buffers Loader::take_buffers() {
  for (const Buffers& buffers : buffers_)
    if (buffers.free()) return buffers;
  std::int64_t values = 0, labels = 0, masks = 0, bytes = 0;
  for (const Piece& p : pieces_) {
    std::int64_t& most = p.as_bytes ? bytes : values;
    most = std::max(most, c10::multiply_integers(p.as_bytes ? byte_sizes(p) : image_sizes(p)));
    labels = std::max(labels, c10::multiply_integers(label_sizes(p)));
    masks = std::max(masks, c10::multiply_integers(mask_sizes(p)));
  }
  const at::TensorOptions host = at::TensorOptions().dtype(options_.dtype).pinned_memory(to_gpu());
  buffers_.push_back(
      {.images = at::empty({values}, host),
       .labels = at::empty({labels}, host.dtype(at::kLong)),
       .masks = options_.mask_dtype ? at::empty({masks}, host.dtype(*options_.mask_dtype)) : at::Tensor(),
       .bytes = at::empty({bytes}, host.dtype(at::kByte))});
  return buffers_.back();
}

Loader::Slot Loader::blank_slot(std::int64_t number) const {
  const std::int64_t step = number / std::ssize(pieces_);
  Slot slot;
  slot.piece = &piece(number);
  slot.batch.epoch = step / batches_per_epoch();
  slot.batch.first_sample = step % batches_per_epoch() * options_.batch_size;
  if (slot.piece->samples() > 0) slot.batch.first_sample += slot.piece->positions.front();
  return slot;
}

Loader::Slot Loader::begin_piece(std::int64_t number) {
  Slot slot = blank_slot(number);
  const Piece& p = *slot.piece;
  slot.tasks_left = p.tasks();
  slot.no_bytes.resize(p.positions.size());
  const auto view = [](const at::Tensor& flat, const std::vector<std::int64_t>& sizes) {
    return flat.narrow(0, 0, c10::multiply_integers(sizes)).view(sizes);
  };
  try {
    const Buffers buffers = take_buffers();
    const auto sizes = image_sizes(p);
    if (p.as_bytes)
      slot.bytes = view(buffers.bytes, byte_sizes(p));
    else
      slot.batch.images = view(buffers.images, {sizes[0], sizes[2], sizes[3], sizes[1]}).permute({0, 3, 1, 2});
    slot.batch.labels = view(buffers.labels, label_sizes(p));
    if (options_.mask_dtype) slot.batch.masks = view(buffers.masks, mask_sizes(p));
  } catch (...) {
    slot.error = std::current_exception();
  }
  return slot;
}

ReadKey Loader::key_of(const Slot& slot, std::int64_t sample) const {
  const auto& positions = slot.piece->positions;
  const std::int64_t position =
      slot.batch.first_sample + positions[static_cast<std::size_t>(sample)] - positions.front();
  const std::int64_t epoch = slot.batch.epoch;
  return {options_.shuffle ? Shuffle(source_->size(), options_.seed, epoch)(position) : position, epoch};
}

std::optional<RawImage> Loader::raw_of(const Slot& slot, std::int64_t sample) const {
  auto raw = source_->raw(key_of(slot, sample), slot.piece->part.height(), slot.piece->part.width());
  return raw && raw->type == type_ ? raw : std::nullopt;
}

// What one image is, the others are, or nearly all. Whoever reads it will hear what is wrong with it.
bool Loader::begins_with_bytes(const Piece& p) {
  try {
    Slot first = blank_slot(0);
    first.piece = &p;
    const auto raw = source_->raw(key_of(first, 0), p.part.height(), p.part.width());
    if (raw) type_ = raw->type;
    return raw.has_value();
  } catch (const Error&) {
    return false;
  }
}

// Bands begin at multiples of what the file can be read in; a file that cannot has one.
Interval Loader::band_of(Interval rows, std::int64_t band, std::int64_t bands, std::int64_t together) {
  if (bands == 1 || together == 0) return band == 0 ? rows : Interval{rows.end, rows.end};
  const auto border = [&](std::int64_t b) {
    if (b == bands) return rows.end;
    return std::clamp((rows.begin + rows.size() * b / bands) / together * together, rows.begin, rows.end);
  };
  return {band == 0 ? rows.begin : border(band), border(band + 1)};
}

at::Tensor Loader::room_for_values(Slot& slot, std::int64_t sample) {
  const std::lock_guard lock(mutex_);
  at::Tensor& room = slot.no_bytes[static_cast<std::size_t>(sample)];
  if (!room.defined()) {
    std::vector<std::int64_t> sizes = image_sizes(*slot.piece);
    sizes[0] = 1;
    room = at::empty(sizes, at::TensorOptions().dtype(options_.dtype).pinned_memory(to_gpu()),
                     at::MemoryFormat::ChannelsLast);
  }
  return room.select(0, 0);
}

void Loader::read_band(Slot& slot, std::int64_t task) {
  const Piece& p = *slot.piece;
  const std::int64_t sample = task / p.bands, band = task % p.bands;
  if (sample >= p.samples()) return;
  const ReadKey key = key_of(slot, sample);
  if (band == 0) {
    if (options_.label_sets_of > 0)
      fill_label_set(*source_, key.index, slot.batch.labels.select(0, sample));
    else
      slot.batch.labels.data_ptr<std::int64_t>()[sample] = source_->label(key.index);
  }
  const auto read_values = [&](const at::Tensor& image) {
    const Interval all = p.part.height();
    const Interval rows = band_of(all, band, p.bands, p.bands == 1 ? 0 : source_->band_rows(key));
    if (!rows.empty() && image.numel() > 0)
      source_->read(key, rows, p.part.width(), image.narrow(1, rows.begin - all.begin, rows.size()));
  };
  if (!p.as_bytes) {
    read_values(slot.batch.images.select(0, sample));
  } else if (const auto raw = raw_of(slot, sample)) {
    const Interval rows = band_of(raw->rows, band, p.bands, raw->band_rows);
    if (!rows.empty())
      source_->read_bytes(key.index, rows, raw->columns,
                          slot.bytes.select(0, sample).data_ptr<std::uint8_t>() +
                              (rows.begin - raw->rows.begin) * raw->columns.size() * raw->pixel_bytes());
  } else {
    read_values(room_for_values(slot, sample));
  }
  // In one go, beside the image's bands: a mask may be of another kind of file.
  if (band + 1 == p.bands && slot.batch.masks.defined() && slot.batch.masks.numel() > 0)
    source_->read_mask(key, p.mask_part.height(), p.mask_part.width(), slot.batch.masks.select(0, sample));
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
  if (!slot.piece->as_bytes) return there(slot.batch.images).to(dtype);
  const at::Tensor bytes = there(slot.bytes);
  const at::Tensor images = at::empty(image_sizes(*slot.piece), at::TensorOptions().dtype(dtype).device(device_),
                                      at::MemoryFormat::ChannelsLast);
  for (std::int64_t i = 0; i < slot.piece->samples(); ++i)
    if (const at::Tensor& values = slot.no_bytes[static_cast<std::size_t>(i)]; values.defined())
      images.select(0, i).copy_(there(values).select(0, 0));
    else
      options_.finish_there(*raw_of(slot, i), bytes.select(0, i), images.select(0, i));
  return images;
}

}  // namespace tessera
