// The norm of the channels at each position. (The others are point-wise steps with statistics: see pointwise.h.)
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>

#include "tessera/ops/families.h"
#include "tessera/ops/kernel.h"
#include "tessera/ops/torch_compat.h"

namespace tessera {
namespace {

// Memory is channels-last, so a position's channels lie side by side: what torch's layer norm is made for.
class LayerNormKernel final : public Kernel {
 public:
  explicit LayerNormKernel(const KernelRequest& r)
      : op_(r.op<LayerNorm>()), channels_(r.input_shapes()[0].channels), parameters_(r.parameters_of_node()) {}

  Slab forward(const ForwardArgs& args) override {
    const at::Tensor x = positions(narrowed(args.inputs[0], args.out).data);
    auto [y, mean, deviation] = at::native_layer_norm(x, {channels_}, weight(x), bias(x), op_.options.epsilon);
    args.saved = {mean, deviation};
    return {y.permute({0, 3, 1, 2}), args.out};
  }
  std::vector<Slab> input_gradients(BackwardArgs& args) override {
    return {{std::get<0>(backward(args, {true, false, false})).permute({0, 3, 1, 2}), args.gradients[0].box}};
  }
  void weight_gradients(BackwardArgs& args) override {
    const auto [dx, dw, db] = backward(args, {false, true, true});
    parameters_.gradients[0].add_(dw);
    parameters_.gradients[1].add_(db);
  }
  bool has_weights() const override { return op_.options.affine; }

 private:
  static at::Tensor positions(const at::Tensor& t) { return t.permute({0, 2, 3, 1}).contiguous(); }
  // Parameters are wider than bfloat16 activations; torch wants one type.
  OptionalTensor weight(const at::Tensor& x) const { return parameter(0, x); }
  OptionalTensor bias(const at::Tensor& x) const { return parameter(1, x); }
  OptionalTensor parameter(std::size_t i, const at::Tensor& x) const {
    return op_.options.affine ? OptionalTensor(parameters_.values[i].to(x.scalar_type())) : OptionalTensor();
  }
  std::tuple<at::Tensor, at::Tensor, at::Tensor> backward(const BackwardArgs& args, std::array<bool, 3> mask) const {
    const Slab& gradient = args.gradients[0];
    const at::Tensor x = positions(narrowed(args.inputs[0], gradient.box).data);
    return at::native_layer_norm_backward(positions(gradient.data), x, {channels_}, args.saved[0], args.saved[1],
                                          weight(x), bias(x), mask);
  }

  const LayerNorm& op_;
  const std::int64_t channels_;
  NodeParameters parameters_;
};

}  // namespace

void add_norm_kernels(Kernels& kernels) {
  kernels.add("layer_norm", [](const KernelRequest& r) { return std::make_unique<LayerNormKernel>(r); });
}

}  // namespace tessera
