// Pools on GPUs.
#include "tessera/ops/families.h"
#include "tessera/ops/cuda/gpu.h"
#include "tessera/ops/kernel.h"

namespace tessera {
namespace {

class GpuMaxPool final : public Kernel {
 public:
  GpuMaxPool(const MaxPool& op, const Shape& input) : op_(op), input_(input) {}
  Slab forward(const ForwardArgs& args) override {
    const Slab in = narrowed(args.inputs[0], op_.windows.seen_by(args.out, input_));
    Slab out = args.place(input_.channels, in.data.options());
    const Slab winners = empty_slab(args.out, input_.channels, in.data.options().dtype(at::kByte));
    args.saved = {winners.data};
    gpu::max_pool(op_.windows, input_, {in.data, in.box}, {out.data, out.box}, winners.data);
    return out;
  }
  std::vector<Slab> input_gradients(BackwardArgs& args) override {
    const Slab& gradient = args.gradients[0];
    Slab dx = empty_slab(op_.windows.seen_by(gradient.box, input_), input_.channels, gradient.data.options());
    gpu::max_pool_gradient(op_.windows, input_, {dx.data, dx.box}, {gradient.data, gradient.box}, args.saved[0]);
    return {dx};
  }

 private:
  const MaxPool& op_;
  const Shape input_;
};

class GpuAvgPool final : public Kernel {
 public:
  GpuAvgPool(const AvgPool& op, const Shape& input) : op_(op), input_(input) {}
  Slab forward(const ForwardArgs& args) override {
    const Slab in = narrowed(args.inputs[0], op_.windows.seen_by(args.out, input_));
    Slab out = args.place(input_.channels, in.data.options());
    gpu::avg_pool(op_.windows, input_, op_.count_include_pad, {in.data, in.box}, {out.data, out.box});
    return out;
  }
  std::vector<Slab> input_gradients(BackwardArgs& args) override {
    const Slab& gradient = args.gradients[0];
    Slab dx = empty_slab(op_.windows.seen_by(gradient.box, input_), input_.channels, gradient.data.options());
    gpu::avg_pool_gradient(op_.windows, input_, op_.count_include_pad, {dx.data, dx.box},
                           {gradient.data, gradient.box});
    return {dx};
  }

 private:
  const AvgPool& op_;
  const Shape input_;
};

}  // namespace

void add_gpu_pool_kernels(Kernels& kernels) {
  const auto on_gpu = [](const KernelRequest& r) { return r.on_gpu(); };
  kernels.add("max_pool", {"cuda", on_gpu, [](const KernelRequest& r) {
                             return std::make_unique<GpuMaxPool>(r.op<MaxPool>(), r.input_shapes()[0]);
                           }});
  kernels.add("avg_pool", {"cuda", on_gpu, [](const KernelRequest& r) {
                             return std::make_unique<GpuAvgPool>(r.op<AvgPool>(), r.input_shapes()[0]);
                           }});
}

}  // namespace tessera
