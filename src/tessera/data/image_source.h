// Where images come from. A source can make any height × width part of any image, so that a rank reads only its tile.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include <ATen/core/ATen_fwd.h>

#include "tessera/geometry/box.h"

namespace tessera {

/// A numbered set of labelled images of one shape.
/// Thread safety: every function is const and may be called from several threads at once.
class ImageSource {
 public:
  virtual ~ImageSource() = default;

  /// How many images there are.
  virtual std::int64_t size() const = 0;
  /// Labels are in [0, classes).
  virtual int classes() const = 0;
  /// Channels, height, width.
  virtual std::array<std::int64_t, 3> image_shape() const = 0;
  virtual std::int64_t label(std::int64_t index) const = 0;

  /// Writes rows × columns of image `index` into `out`, a CPU tensor that is logically [channels, rows, columns], of
  /// float32 or float64 and of any strides; channels-last memory is the fast path. The part must lie inside the image
  /// and may be empty. The float32 value of a pixel is its float64 value, rounded.
  virtual void read(std::int64_t index, Interval rows, Interval columns, const at::Tensor& out) const = 0;

  /// One line for the user: what the images are and how many.
  virtual std::string describe() const = 0;

 protected:
  /// Throws Error when the arguments of a read break its contract.
  void check_read(std::int64_t index, Interval rows, Interval columns, const at::Tensor& out) const;
};

}  // namespace tessera
