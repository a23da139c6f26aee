// A tensor that knows which box of a value it covers.
#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/geometry/box.h"

namespace tessera {

/// data is [batch, channels, height, width] in channels-last memory, rows maybe apart, and covers exactly `box`, which
/// may be a part of the value, or reach outside the image, where data is zero. Copies share the data.
struct Slab {
  at::Tensor data;
  Box box;
  at::Tensor moments = {};  ///< of all of it, where its maker took them on the way: see gpu::moments()
  bool defined() const { return data.defined(); }
  /// Lets go of the numbers; the box stays.
  void release() {
    data.reset();
    moments.reset();
  }
};

/// Where the window's first tap at output (0, 0) is in an input: may be negative or reach past the end.
struct Origin {
  std::int64_t row = 0, column = 0;
};

/// What numbers of this type are added up in, and parameters of a network in it are kept in.
inline at::ScalarType wide_dtype(at::ScalarType dtype) { return dtype == at::kBFloat16 ? at::kFloat : dtype; }

/// Memory for a box of a value with this many channels; not initialised.
Slab empty_slab(const Box& box, std::int64_t channels, const at::TensorOptions& options);
Slab zero_slab(const Box& box, std::int64_t channels, const at::TensorOptions& options);
/// The part of a slab that covers `box`, which must lie inside; shares the data.
Slab narrowed(const Slab& slab, const Box& box);
/// The data of that; undefined where the box is empty.
inline at::Tensor data_in(const Slab& slab, const Box& box) {
  return box.empty() ? at::Tensor() : narrowed(slab, box).data;
}
/// Whether writing into this tensor disturbs nobody.
inline bool exclusive(const at::Tensor& t) { return t.use_count() == 1 && t.storage().use_count() == 1; }
/// Whether its numbers lie without gaps.
bool dense(const at::Tensor& t);
/// The same numbers in channels-last memory with canonical strides. A copy only if the memory is laid out otherwise.
at::Tensor channels_last(const at::Tensor& t);

/// How own CPU loops see a slab: rows of width × channels adjacent numbers.
template <class T>
struct Rows {
  T* data = nullptr;
  std::int64_t samples = 0, rows = 0, width = 0, channels = 0;
  std::int64_t sample_stride = 0, row_stride = 0;
  std::int64_t count() const { return samples * rows; }
  std::int64_t row_elements() const { return width * channels; }
  /// Row i of all samples, counted through.
  T* row(std::int64_t i) const { return data + i / rows * sample_stride + i % rows * row_stride; }
  T* row(std::int64_t sample, std::int64_t y) const { return data + sample * sample_stride + y * row_stride; }
};

/// T may be const. The tensor must have adjacent channels and pixels, as every slab has.
template <class T>
Rows<T> rows_of(const at::Tensor& t);

}  // namespace tessera
