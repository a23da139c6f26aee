#include "tessera/ops/conv_way.h"
#include "tessera/ops/cpu/direct.h"
#include "tessera/ops/cpu/winograd.h"

namespace tessera {
namespace {

// 3×3 windows in Winograd's way for float32 on CPUs.
class WinogradWay final : public ConvWay {
 public:
  explicit WinogradWay(const ConvFacts& facts) : facts_(facts) {}
  std::string_view name() const override { return "winograd"; }
  bool may_pay(const Box& out, ConvPass) const override {
    return std::min(facts_.in_channels, facts_.out_channels) >= 8 && out.height().size() >= 3 &&
           out.width().size() >= 3;
  }
  bool pays(const Box& out, ConvPass) const override {
    return winograd_pays(facts_.in_channels, facts_.out_channels, out.batch().size(), out.height().size(),
                         out.width().size());
  }
  double scratch(const Box& box, ConvPass pass) const override {
    const bool transposed = pass == ConvPass::input_gradient;
    return 4.0 * static_cast<double>(winograd_scratch(transposed ? facts_.out_channels : facts_.in_channels,
                                                      transposed ? facts_.in_channels : facts_.out_channels,
                                                      box.batch().size(), box.height().size(), box.width().size(),
                                                      pass == ConvPass::weight_gradient));
  }
  void forward(const at::Tensor& in, Origin origin, const NodeParameters& parameters,
               const at::Tensor& out) const override {
    winograd_forward(rows_of<const float>(in), origin, parameters.values[0],
                     facts_.bias ? parameters.values[1].data_ptr<float>() : nullptr, rows_of<float>(out));
  }
  void input_gradient(const at::Tensor& gradient, Origin origin, const at::Tensor& weights,
                      const at::Tensor& out) const override {
    winograd_input_gradient(rows_of<const float>(gradient), origin, weights, rows_of<float>(out));
  }
  void weight_gradient(const at::Tensor& in, Origin origin, const at::Tensor& gradient,
                       const at::Tensor& sum) const override {
    winograd_weight_gradient(rows_of<const float>(in), origin, rows_of<const float>(gradient), sum);
  }

 private:
  const ConvFacts facts_;
};

// Products of rows of windows with the weights, for float32 on CPUs.
class DirectWay final : public ConvWay {
 public:
  explicit DirectWay(const ConvFacts& facts) : facts_(facts) {}
  std::string_view name() const override { return "direct"; }
  bool may_pay(const Box&, ConvPass) const override { return true; }
  bool pays(const Box& out, ConvPass pass) const override {
    const std::int64_t made = pass == ConvPass::input_gradient ? facts_.in_channels : facts_.out_channels;
    const std::int64_t read = pass == ConvPass::input_gradient ? facts_.out_channels : facts_.in_channels;
    // Less than a vector is made of whole ones; short sums are mostly loads and stores.
    if (made < 8 || facts_.plain_kernel() * read < 12) return false;
    // Windows of one pixel are one long row. Others have rows of their own, and short ones leave registers empty.
    if (facts_.plain_kernel() > 1 && out.width().size() < 12) return false;
    // Few pixels do not pay for the rearrangement of the weights.
    return out.volume() >= 4 * std::min(facts_.in_channels, facts_.out_channels);
  }
  double scratch(const Box&, ConvPass pass) const override {
    const bool transposed = pass == ConvPass::input_gradient;
    return 4.0 * static_cast<double>(direct_scratch(transposed ? facts_.out_channels : facts_.in_channels,
                                                    transposed ? facts_.in_channels : facts_.out_channels,
                                                    facts_.plain_kernel(), facts_.stride(),
                                                    pass == ConvPass::weight_gradient));
  }
  void forward(const at::Tensor& in, Origin origin, const NodeParameters& parameters,
               const at::Tensor& out) const override {
    direct_forward(rows_of<const float>(in), origin, facts_.stride(), parameters.values[0],
                   facts_.bias ? parameters.values[1].data_ptr<float>() : nullptr, rows_of<float>(out));
  }
  void input_gradient(const at::Tensor& gradient, Origin origin, const at::Tensor& weights,
                      const at::Tensor& out) const override {
    direct_input_gradient(rows_of<const float>(gradient), origin, facts_.stride(), weights, rows_of<float>(out));
  }
  void weight_gradient(const at::Tensor& in, Origin origin, const at::Tensor& gradient,
                       const at::Tensor& sum) const override {
    direct_weight_gradient(rows_of<const float>(in), origin, facts_.stride(), rows_of<const float>(gradient), sum);
  }

 private:
  const ConvFacts facts_;
};

}  // namespace

std::unique_ptr<ConvWay> winograd_way(const ConvFacts& facts) {
  if (facts.dtype != at::kFloat || facts.plain_kernel() != 3 || facts.stride() != 1) return nullptr;
  return std::make_unique<WinogradWay>(facts);
}

std::unique_ptr<ConvWay> direct_way(const ConvFacts& facts) {
  if (facts.dtype != at::kFloat || facts.plain_kernel() == 0) return nullptr;
  return std::make_unique<DirectWay>(facts);
}

std::vector<std::unique_ptr<ConvWay>> cpu_conv_ways(const ConvFacts& facts) {
  std::vector<std::unique_ptr<ConvWay>> ways;
  for (const auto make : {winograd_way, direct_way})
    if (auto way = make(facts)) ways.push_back(std::move(way));
  if (facts.depthwise())
    if (auto way = depthwise_way(facts)) ways.push_back(std::move(way));
  return ways;
}

}  // namespace tessera
