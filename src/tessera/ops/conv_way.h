// Own ways to convolve, each for some windows, channels and types. The general kernel asks them before it asks torch.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "tessera/ops/kernel.h"

namespace tessera {

/// What a convolution is asked to do: made once for a node.
struct ConvFacts {
  Windows windows;
  std::int64_t in_channels = 0, out_channels = 0, groups = 1;
  bool bias = false;
  at::ScalarType dtype = at::kFloat;

  /// The side of square windows without dilation; 0: others.
  std::int64_t square_kernel() const {
    const auto &rows = windows.height, &columns = windows.width;
    const bool square =
        rows.kernel == columns.kernel && rows.stride == columns.stride && rows.dilation == 1 && columns.dilation == 1;
    return square ? rows.kernel : 0;
  }
  /// The same, and 0 where there are groups.
  std::int64_t plain_kernel() const { return groups == 1 ? square_kernel() : 0; }
  std::int64_t stride() const { return windows.height.stride; }
  /// One input and one output channel in each group.
  bool depthwise() const { return groups > 1 && groups == in_channels && groups == out_channels; }
};

enum class ConvPass { forward, input_gradient, weight_gradient };

/// out = weights ⋆ in, where `in` is zero outside of what is there, and the two transposes. Slabs may have gaps.
class ConvWay {
 public:
  virtual ~ConvWay() = default;
  virtual std::string_view name() const = 0;
  /// Whether it is faster than torch for outputs of this box.
  virtual bool pays(const Box& out, ConvPass pass) const = 0;
  /// Bytes that it takes while it makes an output, or an input's gradient, of this box.
  virtual double scratch(const Box& box, ConvPass pass) const { return 0; }
  /// Whether it may be, so that it is worth a measurement.
  virtual bool may_pay(const Box& out, ConvPass pass) const { return pays(out, pass); }
  virtual void forward(const at::Tensor& in, Origin origin, const NodeParameters& parameters,
                       const at::Tensor& out) const = 0;
  /// The origin is forward's.
  virtual void input_gradient(const at::Tensor& gradient, Origin origin, const at::Tensor& weights,
                              const at::Tensor& out) const = 0;
  /// Adds to `sum`, which has the sizes of the weights.
  virtual void weight_gradient(const at::Tensor& in, Origin origin, const at::Tensor& gradient,
                               const at::Tensor& sum) const = 0;
};

/// Those of CPUs and of GPUs for such a convolution, the ones to be asked first before the others.
std::vector<std::unique_ptr<ConvWay>> cpu_conv_ways(const ConvFacts& facts);
std::vector<std::unique_ptr<ConvWay>> gpu_conv_ways(const ConvFacts& facts);

/// Null where the way can do nothing with such a convolution.
std::unique_ptr<ConvWay> winograd_way(const ConvFacts& facts);
std::unique_ptr<ConvWay> direct_way(const ConvFacts& facts);
std::unique_ptr<ConvWay> depthwise_way(const ConvFacts& facts);

}  // namespace tessera
