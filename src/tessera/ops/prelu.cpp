#include <ATen/TensorOperators.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include "tessera/ops/families.h"
#include "tessera/ops/kernel.h"

namespace tessera {
namespace {

class PReluKernel final : public Kernel {
 public:
  explicit PReluKernel(const KernelRequest& r) : parameters_(r.parameters_of_node()) {}
  Slab forward(const ForwardArgs& args) override {
    const at::Tensor x = narrowed(args.inputs[0], args.out).data;
    return {channels_last(at::where(x > 0, x, x * slope(x))), args.out};
  }
  std::vector<Slab> input_gradients(BackwardArgs& args) override {
    const Slab& g = args.gradients[0];
    const at::Tensor x = narrowed(args.inputs[0], g.box).data;
    return {{channels_last(at::where(x > 0, g.data, g.data * slope(x))), g.box}};
  }
  void weight_gradients(BackwardArgs& args) override {
    const Slab& g = args.gradients[0];
    const at::Tensor x = narrowed(args.inputs[0], g.box).data, &sum = parameters_.gradients[0];
    const at::Tensor below = at::where(x > 0, at::zeros_like(x), x * g.data);
    if (sum.numel() == 1)
      sum.add_(below.sum(sum.scalar_type()));
    else
      sum.add_(below.sum({0, 2, 3}, /*keepdim=*/false, sum.scalar_type()));
  }
  bool has_weights() const override { return true; }

 private:
  at::Tensor slope(const at::Tensor& like) const {
    return parameters_.values[0].to(like.scalar_type()).view({1, -1, 1, 1});
  }

  NodeParameters parameters_;
};

}  // namespace

void add_prelu_kernels(Kernels& kernels) {
  kernels.add("prelu", [](const KernelRequest& r) { return std::make_unique<PReluKernel>(r); });
}

}  // namespace tessera
