#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <limits>

#include "tessera/base/error.h"
#include "tessera/ops/cpu/isa/pools.h"
#include "tessera/ops/families.h"
#include "tessera/ops/kernel.h"

namespace tessera {
namespace {

// The taps of a window that fall on pixels of the image.
Interval valid_taps(const Window& w, std::int64_t out, std::int64_t image) {
  const std::int64_t start = out * w.stride - w.pad_begin;
  return intersect(Interval{0, w.kernel}, Interval{-start, image - start});
}

// The outputs whose window holds input `in`, within `outputs`.
Interval windows_over(const Window& w, std::int64_t in, const Interval& outputs) {
  const std::int64_t last = (in + w.pad_begin) / w.stride;
  const std::int64_t after_first = in + w.pad_begin - w.kernel;  // the last output that ends before `in`, times stride
  const std::int64_t first = after_first < 0 ? 0 : after_first / w.stride + 1;
  return intersect(Interval{first, last + 1}, outputs);
}

// Calls visit(sample, y, x) for all pixels of a box, rows in parallel.
template <class Visit>
void for_each_pixel(const Box& box, const Visit& visit) {
  const std::int64_t rows = box.height().size();
  at::parallel_for(0, box.batch().size() * rows, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r)
      for (std::int64_t x = box.width().begin; x < box.width().end; ++x)
        visit(r / rows, box.height().begin + r % rows, x);
  });
}

// Where a pixel of the value stands in a slab that covers `box`.
template <class T>
T* pixel(const Rows<T>& rows, const Box& box, std::int64_t sample, std::int64_t y, std::int64_t x) {
  return rows.row(sample, y - box.height().begin) + (x - box.width().begin) * rows.channels;
}

class MaxPoolKernel final : public Kernel {
 public:
  MaxPoolKernel(const MaxPool& op, const Shape& input) : op_(op), input_(input) {}

  Slab forward(const ForwardArgs& args) override {
    const Slab in = narrowed(args.inputs[0], op_.windows.seen_by(args.out, input_));
    Slab out = args.place(input_.channels, in.data.options());
    Slab winners = empty_slab(args.out, input_.channels, in.data.options().dtype(at::kByte));
    args.saved = {winners.data};
    AT_DISPATCH_FLOATING_TYPES(in.data.scalar_type(), "max_pool", [&] {
      const PoolLoops<scalar_t>& loops = pool_loops<scalar_t>();
      const auto x = rows_of<const scalar_t>(in.data);
      const auto y = rows_of<scalar_t>(out.data);
      const auto w = rows_of<std::uint8_t>(winners.data);
      for_each_pixel(args.out, [&](std::int64_t n, std::int64_t i, std::int64_t j) {
        scalar_t* best = pixel(y, out.box, n, i, j);
        std::uint8_t* winner = pixel(w, out.box, n, i, j);
        std::fill_n(best, input_.channels, -std::numeric_limits<scalar_t>::infinity());
        bool first = true;
        each_tap(i, j, [&](std::uint8_t tap, std::int64_t row, std::int64_t column) {
          // All of a window may be minus infinity: then its first pixel is the winner.
          if (first) std::fill_n(winner, input_.channels, tap);
          first = false;
          loops.take_max(best, winner, pixel(x, in.box, n, row, column), tap, input_.channels);
        });
      });
    });
    return out;
  }

  std::vector<Slab> input_gradients(BackwardArgs& args) override {
    const Slab& gradient = args.gradients[0];
    Slab dx = empty_slab(op_.windows.seen_by(gradient.box, input_), input_.channels, gradient.data.options());
    AT_DISPATCH_FLOATING_TYPES(dx.data.scalar_type(), "max_pool_backward", [&] {
      const PoolLoops<scalar_t>& loops = pool_loops<scalar_t>();
      const auto to = rows_of<scalar_t>(dx.data);
      const auto from = rows_of<const scalar_t>(gradient.data);
      const auto w = rows_of<const std::uint8_t>(args.saved[0]);
      // Each input pixel gathers from the windows over it: no two threads write to one place.
      for_each_pixel(dx.box, [&](std::int64_t n, std::int64_t row, std::int64_t column) {
        scalar_t* sum = pixel(to, dx.box, n, row, column);
        std::fill_n(sum, input_.channels, scalar_t(0));
        const Window &h = op_.windows.height, &v = op_.windows.width;
        const Interval is = windows_over(h, row, gradient.box.height());
        const Interval js = windows_over(v, column, gradient.box.width());
        for (std::int64_t i = is.begin; i < is.end; ++i)
          for (std::int64_t j = js.begin; j < js.end; ++j) {
            const std::int64_t tap =
                (row - i * h.stride + h.pad_begin) * v.kernel + column - j * v.stride + v.pad_begin;
            loops.give_back(sum, pixel(from, gradient.box, n, i, j), pixel(w, gradient.box, n, i, j),
                            static_cast<std::uint8_t>(tap), input_.channels);
          }
      });
    });
    return {dx};
  }

 private:
  template <class Visit>
  void each_tap(std::int64_t i, std::int64_t j, const Visit& visit) const {
    const Window &h = op_.windows.height, &v = op_.windows.width;
    const Interval rows = valid_taps(h, i, input_.height), columns = valid_taps(v, j, input_.width);
    for (std::int64_t a = rows.begin; a < rows.end; ++a)
      for (std::int64_t b = columns.begin; b < columns.end; ++b)
        visit(static_cast<std::uint8_t>(a * v.kernel + b), i * h.stride - h.pad_begin + a,
              j * v.stride - v.pad_begin + b);
  }

  const MaxPool& op_;
  const Shape input_;
};

class AvgPoolKernel final : public Kernel {
 public:
  AvgPoolKernel(const AvgPool& op, const Shape& input) : op_(op), input_(input) {}

  Slab forward(const ForwardArgs& args) override {
    const Slab in = narrowed(args.inputs[0], op_.windows.seen_by(args.out, input_));
    Slab out = args.place(input_.channels, in.data.options());
    AT_DISPATCH_FLOATING_TYPES(in.data.scalar_type(), "avg_pool", [&] {
      const PoolLoops<scalar_t>& loops = pool_loops<scalar_t>();
      const auto x = rows_of<const scalar_t>(in.data);
      const auto y = rows_of<scalar_t>(out.data);
      const Window &h = op_.windows.height, &v = op_.windows.width;
      for_each_pixel(args.out, [&](std::int64_t n, std::int64_t i, std::int64_t j) {
        scalar_t* sum = pixel(y, out.box, n, i, j);
        std::fill_n(sum, input_.channels, scalar_t(0));
        const auto share = static_cast<scalar_t>(1.0 / divisor(i, j));
        const Interval rows = valid_taps(h, i, input_.height), columns = valid_taps(v, j, input_.width);
        for (std::int64_t a = rows.begin; a < rows.end; ++a)
          for (std::int64_t b = columns.begin; b < columns.end; ++b)
            loops.add_scaled(sum, pixel(x, in.box, n, i * h.stride - h.pad_begin + a, j * v.stride - v.pad_begin + b),
                             share, input_.channels);
      });
    });
    return out;
  }

  std::vector<Slab> input_gradients(BackwardArgs& args) override {
    const Slab& gradient = args.gradients[0];
    Slab dx = empty_slab(op_.windows.seen_by(gradient.box, input_), input_.channels, gradient.data.options());
    AT_DISPATCH_FLOATING_TYPES(dx.data.scalar_type(), "avg_pool_backward", [&] {
      const PoolLoops<scalar_t>& loops = pool_loops<scalar_t>();
      const auto to = rows_of<scalar_t>(dx.data);
      const auto from = rows_of<const scalar_t>(gradient.data);
      for_each_pixel(dx.box, [&](std::int64_t n, std::int64_t row, std::int64_t column) {
        scalar_t* sum = pixel(to, dx.box, n, row, column);
        std::fill_n(sum, input_.channels, scalar_t(0));
        const Interval is = windows_over(op_.windows.height, row, gradient.box.height());
        const Interval js = windows_over(op_.windows.width, column, gradient.box.width());
        for (std::int64_t i = is.begin; i < is.end; ++i)
          for (std::int64_t j = js.begin; j < js.end; ++j)
            loops.add_scaled(sum, pixel(from, gradient.box, n, i, j), static_cast<scalar_t>(1.0 / divisor(i, j)),
                             input_.channels);
      });
    });
    return {dx};
  }

 private:
  // Counts positions of the padded image, as torch does: the window may hang over its end.
  double divisor(std::int64_t i, std::int64_t j) const {
    const auto along = [&](const Window& w, std::int64_t out, std::int64_t image) {
      if (!op_.count_include_pad) return valid_taps(w, out, image).size();
      const std::int64_t start = out * w.stride - w.pad_begin;
      return std::min(start + w.kernel, image + w.pad_end) - start;
    };
    return static_cast<double>(along(op_.windows.height, i, input_.height) * along(op_.windows.width, j, input_.width));
  }

  const AvgPool& op_;
  const Shape input_;
};

// Every tile adds up its own pixels; the sums meet in the group. The output belongs to the first tile.
class GlobalAvgPoolKernel final : public Kernel {
 public:
  explicit GlobalAvgPoolKernel(const Shape& input) : input_(input) {}
  Offer offer(const ForwardArgs& args) override {
    const at::ScalarType wide = wide_dtype(args.pass.options.dtype().toScalarType());
    if (args.owned.empty())
      return {at::zeros({args.owned.batch().size(), input_.channels, 1, 1}, args.pass.options.dtype(wide))};
    const at::Tensor in = narrowed(args.inputs[0], args.owned).data;
    return {channels_last(in.sum({2, 3}, /*keepdim=*/true, wide))};
  }
  Slab forward(const ForwardArgs& args) override {
    if (args.out.empty()) return {{}, args.out};
    return {args.agreed.div(input_.positions()).to(args.pass.options.dtype().toScalarType()), args.out};
  }
  // Who does not own the output has no gradient of it.
  Offer offer_gradient(BackwardArgs& args) override {
    if (!args.gradients.empty()) return {args.gradients[0].data.contiguous()};
    return {at::zeros({args.owned.batch().size(), input_.channels, 1, 1}, args.pass.options)};
  }
  std::vector<Slab> input_gradients(BackwardArgs& args) override {
    Slab dx = empty_slab(args.owned, input_.channels, args.pass.options);
    dx.data.copy_(args.agreed.div(input_.positions()).expand(dx.data.sizes()));
    return {dx};
  }

 private:
  const Shape input_;
};

}  // namespace

void add_pool_kernels(Kernels& kernels) {
  add_gpu_pool_kernels(kernels);
  kernels.add("max_pool", [](const KernelRequest& r) {
    return std::make_unique<MaxPoolKernel>(r.op<MaxPool>(), r.input_shapes()[0]);
  });
  kernels.add("avg_pool", [](const KernelRequest& r) {
    return std::make_unique<AvgPoolKernel>(r.op<AvgPool>(), r.input_shapes()[0]);
  });
  kernels.add("global_avg_pool",
              [](const KernelRequest& r) { return std::make_unique<GlobalAvgPoolKernel>(r.input_shapes()[0]); });
}

}  // namespace tessera
