// Transposed convolutions, and bilinear upsampling.
#include <ATen/ops/addmm.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/upsample_bilinear2d.h>
#include <ATen/ops/upsample_bilinear2d_backward.h>

#include "tessera/ops/families.h"
#include "tessera/ops/kernel.h"

namespace tessera {
namespace {

// All that `pixels` become, whether it is asked for or not.
Box block_box(const Box& pixels, Pair scale) {
  Box box = pixels;
  box[Axis::height] = {pixels.height().begin * scale.height, pixels.height().end * scale.height};
  box[Axis::width] = {pixels.width().begin * scale.width, pixels.width().end * scale.width};
  return box;
}

// The gradient all over a box: zero where it has none.
Slab widened(const Slab& gradient, const Box& box) {
  if (gradient.box == box) return gradient;
  Slab whole = zero_slab(box, gradient.data.size(1), gradient.data.options());
  narrowed(whole, gradient.box).data.copy_(gradient.data);
  return whole;
}

// One matrix product: a row for each pixel, a column for each place in the block and output channel.
//
//     pixels x in   times   in x (block rows x block columns x out)   =   blocks, then laid out as a plane
class BlocksKernel final : public Kernel {
 public:
  BlocksKernel(const ConvTranspose& op, const Shape& input, NodeParameters parameters)
      : op_(op), input_(input), parameters_(std::move(parameters)) {}

  Slab forward(const ForwardArgs& args) override {
    const Box pixels = pixels_of(args.out), whole = block_box(pixels, op_.options.scale);
    const at::Tensor x = rows(narrowed(args.inputs[0], pixels)), w = weights();
    const at::Tensor product =
        op_.options.bias ? at::addmm(parameters_.values[1].repeat({places()}), x, w) : at::mm(x, w);
    Slab out = args.place(op_.options.out, product.options());
    // A box may cut through blocks: at the end of an odd plane, and where margins are fused.
    Slab plane = args.out == whole ? out : empty_slab(whole, op_.options.out, product.options());
    blocks(plane.data).copy_(product.view(block_sizes(pixels)).permute({0, 1, 3, 2, 4, 5}));
    if (args.out != whole) out.data.copy_(narrowed(plane, args.out).data);
    return out;
  }

  std::vector<Slab> input_gradients(BackwardArgs& args) override {
    const Box pixels = pixels_of(args.gradients[0].box);
    const at::Tensor dx = at::mm(gradient_rows(args.gradients[0]), weights().t());
    const at::Tensor plane = dx.view({pixels.batch().size(), pixels.height().size(), pixels.width().size(), -1});
    return {{channels_last(plane.permute({0, 3, 1, 2})), pixels}};
  }

  void weight_gradients(BackwardArgs& args) override {
    const Slab& gradient = args.gradients[0];
    const at::Tensor x = rows(narrowed(args.inputs[0], pixels_of(gradient.box)));
    const Pair& scale = op_.options.scale;
    const at::Tensor dw =
        at::mm(x.t(), gradient_rows(gradient)).view({input_.channels, scale.height, scale.width, op_.options.out});
    parameters_.gradients[0].add_(dw.permute({0, 3, 1, 2}));
    if (op_.options.bias) parameters_.gradients[1].add_(gradient.data.sum({0, 2, 3}));
  }

  bool has_weights() const override { return true; }

 private:
  std::int64_t places() const { return op_.options.scale.height * op_.options.scale.width; }
  Box pixels_of(const Box& out) const { return op_.input_box(out, 0, {&input_, 1}); }
  std::vector<std::int64_t> block_sizes(const Box& pixels) const {
    return {pixels.batch().size(),    pixels.height().size(),  pixels.width().size(),
            op_.options.scale.height, op_.options.scale.width, op_.options.out};
  }
  // in x (block rows x block columns x out)
  at::Tensor weights() const {
    return parameters_.values[0].permute({0, 2, 3, 1}).reshape({input_.channels, places() * op_.options.out});
  }
  static at::Tensor rows(const Slab& slab) { return slab.data.permute({0, 2, 3, 1}).reshape({-1, slab.data.size(1)}); }
  // A plane as [samples, pixel rows, block rows, pixel columns, block columns, channels]; shares the data.
  at::Tensor blocks(const at::Tensor& plane) const {
    const Pair& scale = op_.options.scale;
    const auto sample = plane.stride(0), row = plane.stride(2), channels = plane.size(1);
    return plane.as_strided(
        {plane.size(0), plane.size(2) / scale.height, scale.height, plane.size(3) / scale.width, scale.width, channels},
        {sample, row * scale.height, row, channels * scale.width, channels, 1}, plane.storage_offset());
  }
  at::Tensor gradient_rows(const Slab& gradient) const {
    const Box whole = block_box(pixels_of(gradient.box), op_.options.scale);
    const at::Tensor plane = widened(gradient, whole).data;
    return blocks(plane).permute({0, 1, 3, 2, 4, 5}).reshape({-1, places() * op_.options.out});
  }

  const ConvTranspose& op_;
  const Shape input_;
  NodeParameters parameters_;
};

// Any transposed convolution: torch's, of the pixels that a box sees, on the plane that these make; of that the box is
// taken.
class ConvTransposeKernel final : public Kernel {
 public:
  explicit ConvTransposeKernel(const KernelRequest& r)
      : op_(r.op<ConvTranspose>()), input_(r.input_shapes()[0]), parameters_(r.parameters_of_node()) {}

  Slab forward(const ForwardArgs& args) override {
    Slab out = args.place(op_.options.out, args.inputs[0].data.options());
    const Box seen = seen_by(args.out), plane = plane_of(seen), shared = intersect(plane, args.out);
    // Outputs that no pixel reaches are zero.
    if (shared != args.out) out.data.zero_();
    if (!seen.empty() && !shared.empty()) {
      const at::Tensor made = at::convolution(narrowed(args.inputs[0], seen).data, parameters_.values[0], {}, stride(),
                                              none_, dilation(), /*transposed=*/true, none_, op_.options.groups);
      narrowed(out, shared).data.copy_(narrowed({made, plane}, shared).data);
    }
    if (op_.options.bias) out.data.add_(parameters_.values[1].view({1, -1, 1, 1}));
    return out;
  }
  std::vector<Slab> input_gradients(BackwardArgs& args) override {
    const Box seen = seen_by(args.gradients[0].box);
    if (seen.empty()) return {{{}, seen}};
    return {{channels_last(std::get<0>(backward(args, seen, {true, false, false}))), seen}};
  }
  void weight_gradients(BackwardArgs& args) override {
    const Slab& gradient = args.gradients[0];
    if (op_.options.bias) parameters_.gradients[1].add_(gradient.data.sum({0, 2, 3}));
    const Box seen = seen_by(gradient.box);
    if (!seen.empty()) parameters_.gradients[0].add_(std::get<1>(backward(args, seen, {false, true, false})));
  }
  bool has_weights() const override { return true; }

 private:
  using Two = std::array<std::int64_t, 2>;
  Two stride() const { return {op_.options.scale.height, op_.options.scale.width}; }
  Two dilation() const { return {op_.options.dilation.height, op_.options.dilation.width}; }
  Box seen_by(const Box& out) const { return intersect(op_.input_box(out, 0, {&input_, 1}), input_.box(out.batch())); }
  // All that the pixels make; it may reach outside of the output.
  Box plane_of(const Box& pixels) const {
    const auto along = [](const Interval& in, std::int64_t step, std::int64_t pad, std::int64_t taps,
                          std::int64_t apart) {
      return Interval{in.begin * step - pad, (in.end - 1) * step - pad + (taps - 1) * apart + 1};
    };
    const auto& o = op_.options;
    Box plane = pixels;
    plane[Axis::height] = along(pixels.height(), o.scale.height, o.pad.height, op_.kernel.height, o.dilation.height);
    plane[Axis::width] = along(pixels.width(), o.scale.width, o.pad.width, op_.kernel.width, o.dilation.width);
    return plane;
  }
  std::tuple<at::Tensor, at::Tensor, at::Tensor> backward(const BackwardArgs& args, const Box& seen,
                                                          std::array<bool, 3> mask) const {
    const Slab& gradient = args.gradients[0];
    const Box plane = plane_of(seen), shared = intersect(plane, gradient.box);
    const at::Tensor g = widened(narrowed(gradient, shared), plane).data;
    return at::convolution_backward(g, narrowed(args.inputs[0], seen).data, parameters_.values[0],
                                    at::OptionalIntArrayRef(), stride(), none_, dilation(), /*transposed=*/true, none_,
                                    op_.options.groups, mask);
  }

  static constexpr Two none_{0, 0};
  const ConvTranspose& op_;
  const Shape input_;
  NodeParameters parameters_;
};

// Torch doubles what a box needs of the input. The first and last row of that would be those of an edge, which is right
// where the image ends; elsewhere they are not asked for.
class UpsampleKernel final : public Kernel {
 public:
  UpsampleKernel(const Upsample& op, const Shape& input) : op_(op), input_(input) {}

  Slab forward(const ForwardArgs& args) override {
    const Box pixels = pixels_of(args.out), whole = block_box(pixels, Upsample::scale);
    const at::Tensor plane =
        at::upsample_bilinear2d(narrowed(args.inputs[0], pixels).data, sizes(whole), /*align_corners=*/false);
    return {channels_last(narrowed({plane, whole}, args.out).data), args.out};
  }

  std::vector<Slab> input_gradients(BackwardArgs& args) override {
    const Slab& gradient = args.gradients[0];
    const Box pixels = pixels_of(gradient.box), whole = block_box(pixels, Upsample::scale);
    const std::array<std::int64_t, 4> input{pixels.batch().size(), input_.channels, pixels.height().size(),
                                            pixels.width().size()};
    const at::Tensor dx = at::upsample_bilinear2d_backward(widened(gradient, whole).data, sizes(whole), input,
                                                           /*align_corners=*/false);
    return {{channels_last(dx), pixels}};
  }

 private:
  Box pixels_of(const Box& out) const {
    return intersect(op_.input_box(out, 0, {&input_, 1}), input_.box(out.batch()));
  }
  static std::array<std::int64_t, 2> sizes(const Box& box) { return {box.height().size(), box.width().size()}; }

  const Upsample& op_;
  const Shape input_;
};

}  // namespace

void add_upsample_kernels(Kernels& kernels) {
  kernels.add("conv_transpose", {"product", [](const KernelRequest& r) { return r.op<ConvTranspose>().of_blocks(); },
                                 [](const KernelRequest& r) {
                                   return std::make_unique<BlocksKernel>(r.op<ConvTranspose>(), r.input_shapes()[0],
                                                                         r.parameters_of_node());
                                 }});
  kernels.add("conv_transpose", [](const KernelRequest& r) { return std::make_unique<ConvTransposeKernel>(r); });
  kernels.add("upsample", [](const KernelRequest& r) {
    return std::make_unique<UpsampleKernel>(r.op<Upsample>(), r.input_shapes()[0]);
  });
}

}  // namespace tessera
