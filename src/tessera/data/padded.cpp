#include "tessera/data/padded.h"

#include <ATen/core/Tensor.h>

namespace tessera {

Padded::Padded(std::shared_ptr<const ImageSource> source, std::int64_t multiple)
    : source_(std::move(source)), size_((source_->size() + multiple - 1) / multiple * multiple) {}

std::int64_t Padded::label(std::int64_t index) const { return index < source_->size() ? source_->label(index) : 0; }

void Padded::read(ReadKey key, Interval rows, Interval columns, const at::Tensor& out) const {
  if (key.index < source_->size()) return source_->read(key, rows, columns, out);
  check_read(key, rows, columns, out);
  out.zero_();
}

void Padded::read_mask(ReadKey key, Interval rows, Interval columns, const at::Tensor& out) const {
  if (key.index < source_->size()) return source_->read_mask(key, rows, columns, out);
  check_read_mask(key, rows, columns, out);
  out.fill_(ignored_label);
}

}  // namespace tessera
