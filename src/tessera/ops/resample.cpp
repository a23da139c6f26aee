// Padding, resizing and adaptive pools.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/zeros.h>

#include <array>
#include <map>

#include "tessera/ops/families.h"
#include "tessera/ops/kernel.h"

namespace tessera {
namespace {

// What an output box looks at, inside the image.
Box seen_by(const TabledOperation& op, const Box& out, const Shape& input) {
  return intersect(op.input_box(out, 0, {&input, 1}), input.box(out.batch()));
}

constexpr std::array<std::pair<Axis, std::int64_t>, 2> plane{{{Axis::height, 2}, {Axis::width, 3}}};

// One number for each output along an axis.
template <class Of>
at::Tensor numbers_along(const Interval& out, at::ScalarType dtype, const at::Device& device, const Of& of) {
  at::Tensor t = at::empty({out.size()}, at::kDouble);
  for (std::int64_t o = 0; o < out.size(); ++o) t.data_ptr<double>()[o] = static_cast<double>(of(out.begin + o));
  return t.to(device, dtype);
}

// Tables of a kernel, made once for each box and kept: on a GPU every upload would be waited for, in every pass, and
// steps that wait cannot be recorded.
class Tables {
 public:
  template <class Make>
  at::Tensor of(Axis axis, const Interval& out, const Interval& seen, const Make& make, int which = 0) const {
    at::Tensor& t = made_[{which, static_cast<std::int64_t>(axis), out.begin, out.end, seen.begin, seen.end}];
    if (!t.defined()) t = make();
    return t;
  }

 private:
  mutable std::map<std::array<std::int64_t, 6>, at::Tensor> made_;
};

class PadKernel final : public Kernel {
 public:
  explicit PadKernel(const KernelRequest& r) : op_(r.op<Pad>()), input_(r.input_shapes()[0]) {}

  Slab forward(const ForwardArgs& args) override {
    const Box seen = seen_by(op_, args.out, input_);
    Slab out = args.place(input_.channels, args.inputs[0].data.options());
    Box copied = args.out;
    for (const auto& [axis, dim] : plane) copied[axis] = copied_along(args.out[axis], axis);
    if (copied != args.out) out.data.zero_();
    if (copied.empty() || seen.empty()) return out;
    at::Tensor x = narrowed(args.inputs[0], seen).data;
    for (const auto& [axis, dim] : plane) x = x.index_select(dim, sources(copied[axis], axis, seen, x.device()));
    narrowed(out, copied).data.copy_(x);
    return out;
  }

  std::vector<Slab> input_gradients(BackwardArgs& args) override {
    const Slab& gradient = args.gradients[0];
    const Box seen = seen_by(op_, gradient.box, input_);
    Box copied = gradient.box;
    for (const auto& [axis, dim] : plane) copied[axis] = copied_along(gradient.box[axis], axis);
    if (copied.empty() || seen.empty()) return {zero_slab(Box{}, input_.channels, gradient.data.options())};
    at::Tensor g = narrowed(gradient, copied).data;
    for (const auto& [axis, dim] : plane) {
      auto sizes = g.sizes().vec();
      sizes[static_cast<std::size_t>(dim)] = seen[axis].size();
      at::Tensor sum = at::zeros(sizes, g.options());
      g = sum.index_add_(dim, sources(copied[axis], axis, seen, g.device()), g);
    }
    return {{channels_last(g), seen}};
  }

 private:
  // The outputs that are copies; the others, at both ends, are zeros.
  Interval copied_along(const Interval& out, Axis axis) const {
    Interval in = out;
    while (!in.empty() && op_.source(in.begin, axis, input_) < 0) ++in.begin;
    while (!in.empty() && op_.source(in.end - 1, axis, input_) < 0) --in.end;
    return in;
  }
  at::Tensor sources(const Interval& out, Axis axis, const Box& seen, const at::Device& device) const {
    return tables_.of(axis, out, seen[axis], [&] {
      return numbers_along(out, at::kLong, device,
                           [&](std::int64_t o) { return op_.source(o, axis, input_) - seen[axis].begin; });
    });
  }

  const Pad& op_;
  const Shape input_;
  const Tables tables_;
};

class ResizeKernel final : public Kernel {
 public:
  explicit ResizeKernel(const KernelRequest& r) : op_(r.op<Resize>()), input_(r.input_shapes()[0]) {}

  Slab forward(const ForwardArgs& args) override {
    const Box seen = seen_by(op_, args.out, input_);
    const at::ScalarType dtype = args.inputs[0].data.scalar_type();
    at::Tensor x = narrowed(args.inputs[0], seen).data;
    if (bilinear()) x = x.to(wide_dtype(dtype));
    for (const auto& [axis, dim] : plane) {
      const Taps taps = taps_along(args.out[axis], axis, dim, seen, x);
      at::Tensor y = x.index_select(dim, taps.first);
      if (bilinear()) y = y * taps.one_minus_weight + x.index_select(dim, taps.second) * taps.weight;
      x = y;
    }
    return {channels_last(x.to(dtype)), args.out};
  }

  std::vector<Slab> input_gradients(BackwardArgs& args) override {
    const Slab& gradient = args.gradients[0];
    const Box seen = seen_by(op_, gradient.box, input_);
    const at::ScalarType dtype = gradient.data.scalar_type();
    at::Tensor g = gradient.data.to(wide_dtype(dtype));
    for (const auto& [axis, dim] : plane) {
      const Taps taps = taps_along(gradient.box[axis], axis, dim, seen, g);
      auto sizes = g.sizes().vec();
      sizes[static_cast<std::size_t>(dim)] = seen[axis].size();
      const at::Tensor sum = at::zeros(sizes, g.options());
      if (bilinear()) {
        sum.index_add_(dim, taps.first, g * taps.one_minus_weight);
        sum.index_add_(dim, taps.second, g * taps.weight);
      } else {
        sum.index_add_(dim, taps.first, g);
      }
      g = sum;
    }
    return {{channels_last(g.to(dtype)), seen}};
  }

 private:
  struct Taps {
    at::Tensor first, second, weight, one_minus_weight;
  };
  bool bilinear() const { return op_.options.mode == ResizeMode::bilinear; }
  Taps taps_along(const Interval& out, Axis axis, std::int64_t dim, const Box& seen, const at::Tensor& like) const {
    const auto source = [&](std::int64_t o) { return op_.source(o, axis, input_); };
    const std::int64_t begin = seen[axis].begin, last = seen[axis].size() - 1;
    Taps taps;
    const auto table = [&](int which, at::ScalarType dtype, const auto& of) {
      return tables_.of(
          axis, out, seen[axis], [&] { return numbers_along(out, dtype, like.device(), of); }, which);
    };
    taps.first = table(0, at::kLong, [&](std::int64_t o) { return source(o).first - begin; });
    if (!bilinear()) return taps;
    // Where the weight is 0 the next pixel may not be there.
    taps.second = table(1, at::kLong, [&](std::int64_t o) { return std::min(source(o).first - begin + 1, last); });
    std::vector<std::int64_t> sizes(4, 1);
    sizes[static_cast<std::size_t>(dim)] = out.size();
    taps.weight = table(2, like.scalar_type(), [&](std::int64_t o) { return source(o).weight; }).view(sizes);
    taps.one_minus_weight = 1 - taps.weight;
    return taps;
  }

  const Resize& op_;
  const Shape input_;
  const Tables tables_;
};

// A matrix for the rows and one for the columns, each with a mean per output.
class AdaptiveAvgPoolKernel final : public Kernel {
 public:
  explicit AdaptiveAvgPoolKernel(const KernelRequest& r) : op_(r.op<AdaptivePool>()), input_(r.input_shapes()[0]) {}

  Slab forward(const ForwardArgs& args) override {
    const Box seen = seen_by(op_, args.out, input_);
    const at::Tensor in = narrowed(args.inputs[0], seen).data, x = in.to(wide_dtype(in.scalar_type()));
    const at::Tensor rows = means(Axis::height, args.out, seen, x), columns = means(Axis::width, args.out, seen, x);
    return {channels_last(at::matmul(rows, at::matmul(x, columns.t())).to(in.scalar_type())), args.out};
  }
  std::vector<Slab> input_gradients(BackwardArgs& args) override {
    const Slab& gradient = args.gradients[0];
    const Box seen = seen_by(op_, gradient.box, input_);
    const at::Tensor g = gradient.data.to(wide_dtype(gradient.data.scalar_type()));
    const at::Tensor rows = means(Axis::height, gradient.box, seen, g),
                     columns = means(Axis::width, gradient.box, seen, g);
    return {{channels_last(at::matmul(rows.t(), at::matmul(g, columns)).to(gradient.data.scalar_type())), seen}};
  }

 private:
  at::Tensor means(Axis axis, const Box& out, const Box& seen, const at::Tensor& like) const {
    return tables_.of(axis, out[axis], seen[axis], [&] {
      const AxisTable table = op_.table(axis, input_);
      at::Tensor m = at::zeros({out[axis].size(), seen[axis].size()}, at::kDouble);
      for (std::int64_t o = 0; o < out[axis].size(); ++o) {
        const Interval in = table.sees[static_cast<std::size_t>(out[axis].begin + o)];
        m[o].narrow(0, in.begin - seen[axis].begin, in.size()).fill_(1.0 / static_cast<double>(in.size()));
      }
      return m.to(like.options());
    });
  }

  const AdaptivePool& op_;
  const Shape input_;
  const Tables tables_;
};

class AdaptiveMaxPoolKernel final : public Kernel {
 public:
  explicit AdaptiveMaxPoolKernel(const KernelRequest& r) : op_(r.op<AdaptivePool>()), input_(r.input_shapes()[0]) {}

  Slab forward(const ForwardArgs& args) override {
    const at::Tensor& like = args.inputs[0].data;
    Slab out = args.place(input_.channels, like.options());
    // Which position of its own window won, of each output.
    const Slab winners = empty_slab(args.out, input_.channels, like.options().dtype(at::kLong));
    each_output(args.out, [&](std::int64_t i, std::int64_t j, const Box& window) {
      const auto [best, place] = narrowed(args.inputs[0], window).data.flatten(2).max(2);
      out.data.select(3, j).select(2, i).copy_(best);
      winners.data.select(3, j).select(2, i).copy_(place);
    });
    args.saved = {winners.data};
    return out;
  }
  std::vector<Slab> input_gradients(BackwardArgs& args) override {
    const Slab& gradient = args.gradients[0];
    const Slab dx = zero_slab(seen_by(op_, gradient.box, input_), input_.channels, gradient.data.options());
    each_output(gradient.box, [&](std::int64_t i, std::int64_t j, const Box& window) {
      const auto cell = [&](const at::Tensor& t) { return t.select(3, j).select(2, i).unsqueeze(2); };
      const at::Tensor part = narrowed(dx, window).data;
      const at::Tensor given = at::zeros({part.size(0), part.size(1), part.size(2) * part.size(3)}, part.options());
      part.add_(given.scatter_(2, cell(args.saved[0]), cell(gradient.data)).view(part.sizes()));
    });
    return {dx};
  }

 private:
  template <class Visit>
  void each_output(const Box& out, const Visit& visit) const {
    const AxisTable rows = op_.table(Axis::height, input_), columns = op_.table(Axis::width, input_);
    for (std::int64_t i = 0; i < out.height().size(); ++i)
      for (std::int64_t j = 0; j < out.width().size(); ++j) {
        Box window = out;
        window[Axis::height] = rows.sees[static_cast<std::size_t>(out.height().begin + i)];
        window[Axis::width] = columns.sees[static_cast<std::size_t>(out.width().begin + j)];
        visit(i, j, window);
      }
  }

  const AdaptivePool& op_;
  const Shape input_;
};

}  // namespace

void add_resample_kernels(Kernels& kernels) {
  kernels.add("pad", [](const KernelRequest& r) { return std::make_unique<PadKernel>(r); });
  kernels.add("resize", [](const KernelRequest& r) { return std::make_unique<ResizeKernel>(r); });
  kernels.add("adaptive_avg_pool", [](const KernelRequest& r) { return std::make_unique<AdaptiveAvgPoolKernel>(r); });
  kernels.add("adaptive_max_pool", [](const KernelRequest& r) { return std::make_unique<AdaptiveMaxPoolKernel>(r); });
}

}  // namespace tessera
