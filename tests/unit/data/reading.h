// Reading parts of images and masks into new tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "tessera/data/image_source.h"

namespace tessera {

inline at::Tensor read(const ImageSource& source, ReadKey key, Interval rows, Interval columns,
                       at::ScalarType dtype = at::kDouble) {
  const std::int64_t channels = source.image_shape()[0];
  const at::Tensor image = at::empty({1, channels, rows.size(), columns.size()}, at::TensorOptions().dtype(dtype),
                                     at::MemoryFormat::ChannelsLast)
                               .select(0, 0);
  source.read(key, rows, columns, image);
  return image;
}

inline at::Tensor read_whole(const ImageSource& source, ReadKey key, at::ScalarType dtype = at::kDouble) {
  const auto [channels, height, width] = source.image_shape();
  return read(source, key, {0, height}, {0, width}, dtype);
}

inline at::Tensor read_mask(const ImageSource& source, ReadKey key, Interval rows, Interval columns,
                            at::ScalarType dtype = at::kLong) {
  const at::Tensor mask = at::empty({rows.size(), columns.size()}, at::TensorOptions().dtype(dtype));
  source.read_mask(key, rows, columns, mask);
  return mask;
}

inline at::Tensor read_whole_mask(const ImageSource& source, ReadKey key, at::ScalarType dtype = at::kLong) {
  const auto [channels, height, width] = source.image_shape();
  return read_mask(source, key, {0, height}, {0, width}, dtype);
}

/// The part of an image or a mask.
inline at::Tensor crop(const at::Tensor& whole, Interval rows, Interval columns) {
  return whole.slice(-2, rows.begin, rows.end).slice(-1, columns.begin, columns.end);
}

/// Boxes that cover an image of a shape: corners, single pixels, uneven tiles, nothing, all.
inline std::vector<std::pair<Interval, Interval>> some_boxes(std::int64_t height, std::int64_t width) {
  const std::int64_t y = height * 3 / 7, x = width * 5 / 9;
  return {{{0, height}, {0, width}},
          {{0, y}, {0, x}},
          {{0, y}, {x, width}},
          {{y, height}, {0, x}},
          {{y, height}, {x, width}},
          {{y, y + 1}, {x, x + 1}},
          {{height - 1, height}, {0, width}},
          {{y, y}, {0, width}}};
}

}  // namespace tessera
