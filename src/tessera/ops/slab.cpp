#include "tessera/ops/slab.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera {

Slab empty_slab(const Box& box, std::int64_t channels, const at::TensorOptions& options) {
  ensure(box[Axis::depth].size() == 1, "volumes are not supported yet, but a box has depth ", box[Axis::depth]);
  return {at::empty({box.batch().size(), channels, box.height().size(), box.width().size()}, options,
                    at::MemoryFormat::ChannelsLast),
          box};
}

Slab zero_slab(const Box& box, std::int64_t channels, const at::TensorOptions& options) {
  Slab slab = empty_slab(box, channels, options);
  slab.data.zero_();
  return slab;
}

Slab narrowed(const Slab& slab, const Box& box) {
  if (box == slab.box) return slab;
  ensure(slab.box.contains(box), "box ", box, " is not inside ", slab.box);
  at::Tensor data = slab.data;
  const auto cut = [&](std::int64_t dim, Axis axis) {
    if (box[axis] == slab.box[axis]) return;
    // An empty box may lie anywhere.
    const std::int64_t start = std::clamp<std::int64_t>(box[axis].begin - slab.box[axis].begin, 0, data.size(dim));
    data = data.narrow(dim, start, box[axis].size());
  };
  cut(0, Axis::batch);
  cut(2, Axis::height);
  cut(3, Axis::width);
  return {data, box};
}

bool dense(const at::Tensor& t) {
  std::int64_t run = 1;
  for (const std::int64_t dim : {1, 3, 2, 0}) {
    if (t.size(dim) != 1 && t.stride(dim) != run) return false;
    run *= t.size(dim);
  }
  return true;
}

at::Tensor channels_last(const at::Tensor& t) {
  const at::Tensor dense = t.contiguous(at::MemoryFormat::ChannelsLast);
  // Where a dimension has size one, torch accepts any stride; loops over rows need the true one.
  const auto n = dense.size(1), h = dense.size(2), w = dense.size(3);
  return dense.as_strided(dense.sizes(), {n * h * w, 1, n * w, n});
}

template <class T>
Rows<T> rows_of(const at::Tensor& t) {
  const auto channels = t.size(1), height = t.size(2), width = t.size(3);
  ensure((channels == 1 || t.stride(1) == 1) && (width == 1 || t.stride(3) == channels), "a tensor of sizes ",
         t.sizes(), " and strides ", t.strides(), " is not channels-last");
  using Bare = std::remove_const_t<T>;
  return {t.data_ptr<Bare>(), t.size(0), height, width, channels, t.stride(0), t.stride(2)};
}

template Rows<float> rows_of<float>(const at::Tensor&);
template Rows<double> rows_of<double>(const at::Tensor&);
template Rows<std::uint8_t> rows_of<std::uint8_t>(const at::Tensor&);
template Rows<const float> rows_of<const float>(const at::Tensor&);
template Rows<const double> rows_of<const double>(const at::Tensor&);
template Rows<const std::uint8_t> rows_of<const std::uint8_t>(const at::Tensor&);

}  // namespace tessera
