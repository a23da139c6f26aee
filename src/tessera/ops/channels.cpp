#include <ATen/ops/cat.h>

#include "tessera/ops/families.h"
#include "tessera/ops/kernel.h"

namespace tessera {
namespace {

class ConcatKernel final : public Kernel {
 public:
  explicit ConcatKernel(std::vector<Shape> inputs) : inputs_(std::move(inputs)) {}
  Slab forward(const ForwardArgs& args) override {
    std::int64_t channels = 0;
    for (const auto& shape : inputs_) channels += shape.channels;
    Slab out = args.place(channels, args.inputs[0].data.options());
    std::int64_t at = 0;
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      out.data.narrow(1, at, inputs_[i].channels).copy_(narrowed(args.inputs[i], args.out).data);
      at += inputs_[i].channels;
    }
    return out;
  }
  std::vector<Slab> input_gradients(BackwardArgs& args) override {
    const Slab& gradient = args.gradients[0];
    std::vector<Slab> out(inputs_.size());
    std::int64_t at = 0;
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      if (args.wanted[i]) out[i] = {channels_last(gradient.data.narrow(1, at, inputs_[i].channels)), gradient.box};
      at += inputs_[i].channels;
    }
    return out;
  }

 private:
  const std::vector<Shape> inputs_;
};

class SliceKernel final : public Kernel {
 public:
  explicit SliceKernel(const KernelRequest& r) : op_(r.op<SliceChannels>()), channels_(r.input_shapes()[0].channels) {}
  Slab forward(const ForwardArgs& args) override {
    const at::Tensor in = narrowed(args.inputs[0], args.out).data;
    Slab out = args.place(op_.count, in.options());
    out.data.copy_(in.narrow(1, op_.first, op_.count));
    return out;
  }
  std::vector<Slab> input_gradients(BackwardArgs& args) override {
    const Slab& gradient = args.gradients[0];
    const Slab dx = zero_slab(gradient.box, channels_, gradient.data.options());
    dx.data.narrow(1, op_.first, op_.count).copy_(gradient.data);
    return {dx};
  }

 private:
  const SliceChannels& op_;
  const std::int64_t channels_;
};

class ShuffleKernel final : public Kernel {
 public:
  explicit ShuffleKernel(const KernelRequest& r) : groups_(r.op<ChannelShuffle>().groups) {}
  Slab forward(const ForwardArgs& args) override {
    return {dealt(narrowed(args.inputs[0], args.out).data, groups_), args.out};
  }
  // Dealt back: the groups are as many as a group had channels.
  std::vector<Slab> input_gradients(BackwardArgs& args) override {
    const Slab& gradient = args.gradients[0];
    return {{dealt(gradient.data, gradient.data.size(1) / groups_), gradient.box}};
  }

 private:
  static at::Tensor dealt(const at::Tensor& t, std::int64_t groups) {
    const at::Tensor split = t.unflatten(1, at::IntArrayRef({groups, t.size(1) / groups}));
    return channels_last(split.transpose(1, 2).flatten(1, 2));
  }

  const std::int64_t groups_;
};

}  // namespace

void add_channel_kernels(Kernels& kernels) {
  kernels.add("channel_shuffle", [](const KernelRequest& r) { return std::make_unique<ShuffleKernel>(r); });
  kernels.add("slice_channels", [](const KernelRequest& r) { return std::make_unique<SliceKernel>(r); });
  kernels.add("concat", [](const KernelRequest& r) { return std::make_unique<ConcatKernel>(r.input_shapes()); });
}

}  // namespace tessera
