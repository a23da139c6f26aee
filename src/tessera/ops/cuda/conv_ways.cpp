#include "tessera/ops/conv_way.h"
#include "tessera/ops/cuda/gpu.h"

namespace tessera {
namespace {

// Few channels, and images, of bfloat16 on GPUs.
class FewChannelsWay final : public ConvWay {
 public:
  explicit FewChannelsWay(const ConvFacts& facts) : facts_(facts) {}
  std::string_view name() const override { return "few channels"; }
  bool pays(const Box& out, ConvPass pass) const override {
    return gpu::conv_pays(
        {facts_.plain_kernel(), facts_.stride(), facts_.in_channels, facts_.out_channels, out.volume()},
        pass == ConvPass::input_gradient);
  }
  void forward(const at::Tensor& in, Origin origin, const NodeParameters& parameters,
               const at::Tensor& out) const override {
    gpu::conv(in, origin, parameters.values[0], facts_.stride(), out);
  }
  void input_gradient(const at::Tensor& gradient, Origin origin, const at::Tensor& weights,
                      const at::Tensor& out) const override {
    gpu::conv_input_gradient(gradient, origin, weights, out);
  }
  void weight_gradient(const at::Tensor& in, Origin origin, const at::Tensor& gradient,
                       const at::Tensor& sum) const override {
    gpu::conv_weight_gradient(in, origin, gradient, facts_.stride(), sum);
  }

 private:
  const ConvFacts facts_;
};

// One window for each channel.
class GpuDepthwiseWay final : public ConvWay {
 public:
  explicit GpuDepthwiseWay(const ConvFacts& facts) : facts_(facts) {}
  std::string_view name() const override { return "depthwise"; }
  bool pays(const Box&, ConvPass) const override { return true; }
  void forward(const at::Tensor& in, Origin origin, const NodeParameters& parameters,
               const at::Tensor& out) const override {
    gpu::depthwise(in, origin, parameters.values[0], facts_.bias ? parameters.values[1] : at::Tensor(), facts_.stride(),
                   out);
  }
  void input_gradient(const at::Tensor& gradient, Origin origin, const at::Tensor& weights,
                      const at::Tensor& out) const override {
    gpu::depthwise_input_gradient(gradient, origin, weights, facts_.stride(), out);
  }
  void weight_gradient(const at::Tensor& in, Origin origin, const at::Tensor& gradient,
                       const at::Tensor& sum) const override {
    gpu::depthwise_weight_gradient(in, origin, gradient, facts_.stride(), sum);
  }

 private:
  const ConvFacts facts_;
};

}  // namespace

std::vector<std::unique_ptr<ConvWay>> gpu_conv_ways(const ConvFacts& facts) {
  std::vector<std::unique_ptr<ConvWay>> ways;
  if (facts.depthwise() && gpu::depthwise_can(facts.square_kernel(), facts.stride()))
    ways.push_back(std::make_unique<GpuDepthwiseWay>(facts));
  if (facts.dtype == at::kBFloat16 && !facts.bias && facts.plain_kernel() != 0)
    ways.push_back(std::make_unique<FewChannelsWay>(facts));
  return ways;
}

}  // namespace tessera
