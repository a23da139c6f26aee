#include "tessera/graph/operations/pool.h"

#include "tessera/base/error.h"

namespace tessera {
namespace {

Windows pool_windows(const PoolOptions& o) {
  Windows windows(o.kernel, o.stride.value_or(o.kernel), o.pad, o.pad_end.value_or(o.pad), 1);
  windows.height.hangs_over = windows.width.hangs_over = o.ceil_mode;
  for (const Window& w : {windows.height, windows.width})
    require(w.pad_begin >= 0 && w.pad_end >= 0 && w.pad_begin < w.kernel && w.pad_end < w.kernel, "pool of ", w.kernel,
            " with padding ", w.pad_begin, " and ", w.pad_end, ": every window must see at least one pixel");
  return windows;
}

Cost pool_cost(const Windows& windows, Shapes inputs, const Box& out) {
  const auto channels = static_cast<double>(inputs[0].channels);
  const double outputs = static_cast<double>(out.volume()) * channels;
  const double taps = static_cast<double>(windows.height.kernel * windows.width.kernel);
  const double read =
      static_cast<double>(intersect(windows.input_of(out), inputs[0].box(out.batch())).volume()) * channels;
  return {outputs * taps, outputs * taps, 0, read + outputs};
}

}  // namespace

MaxPool::MaxPool(const PoolOptions& options) : windows(pool_windows(options)) {
  require(options.kernel.height * options.kernel.width <= 256, "max pool of ", options.kernel.height, "x",
          options.kernel.width, ": at most 256 positions in a window");
}

Cost MaxPool::cost(Shapes inputs, const Box& out) const { return pool_cost(windows, inputs, out); }

AvgPool::AvgPool(const PoolOptions& options)
    : windows(pool_windows(options)), count_include_pad(options.count_include_pad) {}

Cost AvgPool::cost(Shapes inputs, const Box& out) const { return pool_cost(windows, inputs, out); }

Cost GlobalAvgPool::cost(Shapes inputs, const Box& out) const {
  const double elements = static_cast<double>(inputs[0].elements() * out.batch().size());
  return {elements, elements, 0, elements};
}

}  // namespace tessera
