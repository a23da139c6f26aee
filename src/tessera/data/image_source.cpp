#include "tessera/data/image_source.h"

#include <ATen/core/Tensor.h>

#include "tessera/base/error.h"

namespace tessera {

void ImageSource::check_read(std::int64_t index, Interval rows, Interval columns, const at::Tensor& out) const {
  const auto [channels, height, width] = image_shape();
  ensure(0 <= index && index < size(), "image ", index, " of a source of ", size(), " images");
  ensure((Interval{0, height}.contains(rows) && Interval{0, width}.contains(columns)), "rows ", rows, " and columns ",
         columns, " reach outside an image of ", height, "x", width);
  ensure(out.device().is_cpu(), "images are read into CPU tensors, not into one on ", out.device());
  ensure(out.scalar_type() == at::kFloat || out.scalar_type() == at::kDouble,
         "images are read as float or double, not ", out.scalar_type());
  ensure(out.sizes() == at::IntArrayRef({channels, rows.size(), columns.size()}), "a part of ", channels,
         " channels, rows ", rows, " and columns ", columns, " does not fit a tensor of sizes ", out.sizes());
}

}  // namespace tessera
