// A convolution by torch: in one of several ways, of a part of a slab, with padding that differs on both ends.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <string_view>
#include <tuple>

#include "tessera/graph/operations/conv.h"
#include "tessera/ops/conv_way.h"
#include "tessera/ops/kernel.h"

namespace tessera {

/// What torch does with few images on one thread. ATen leaves windows of one pixel to a matrix product unless the batch
/// is large; oneDNN beats that, by up to two where channels are few, so rows are taken for samples. With more weights
/// than pixels a product of all windows with the weights is fastest, larger windows included: it takes the weights as
/// they lie and adds to their gradient in place. Blocked is oneDNN in the layout of its choice, with copies there and
/// back; only a measurement finds out where that pays.
enum class TorchWay { convolution, rows_as_samples, product, blocked };
std::string_view to_string(TorchWay way);

class TorchConv {
 public:
  TorchConv(const Conv& op, const Shape& input, NodeParameters parameters, bool on_gpu, bool float32);

  /// By rule.
  TorchWay way(const Box& out) const;
  /// Whether `way` is worth a measurement.
  bool may_pay(TorchWay way, const Box& out) const;

  Slab forward(TorchWay way, const Slab& input, const Box& out) const;
  Slab input_gradient(TorchWay way, const Slab& input, const Slab& gradient) const;
  /// Adds to `sum`, which has the sizes of the weights.
  void weight_gradient(TorchWay way, const Slab& input, const Slab& gradient, const at::Tensor& sum) const;

  /// Bytes of what is done to torch's arguments beforehand, where the input covers `in`.
  double preparation(const Box& out, const Box& in, ConvPass pass) const;
  /// Bytes that what is done to torch's result takes: after that, so not beside torch's own.
  double afterwards(const Box& out, const Box& in, ConvPass pass) const;
  bool pads_by_hand(const Box& out, const Box& in) const;
  /// Bytes that torch takes beside that: at least as many, whatever the machine.
  double scratch(TorchWay way, const Box& out, const Box& in, ConvPass pass) const;
  /// The same of a large output, if a trial with a part of it took `measured`.
  double scratch_of_larger(double measured, const Box& part, const Box& out, ConvPass pass) const;

 private:
  struct Problem;

  Problem problem(TorchWay way, const Slab& slab, const Box& out) const;
  bool of_single_pixels() const;
  bool few() const;
  bool single() const;
  double element_bytes() const;
  Box view_of(const Box& out, const Box& in) const;
  double padded_bytes(const Box& out) const;
  double ordered_weights(ConvPass pass) const;
  double of_weights(ConvPass pass) const;
  at::Tensor every_stride(const at::Tensor& t) const;
  at::Tensor windows_of(const Problem& p) const;
  at::Tensor sum_of_windows(const Problem& p, const at::Tensor& windows) const;
  at::Tensor convolved(const Problem& p) const;
  at::Tensor input_gradient_of(const Problem& p, const at::Tensor& gradient) const;
  std::tuple<at::Tensor, at::Tensor, at::Tensor> backward(const Problem& p, const at::Tensor& gradient,
                                                          std::array<bool, 3> mask) const;
  std::array<std::int64_t, 2> dilation() const;

  const Conv& op_;
  const Shape input_;
  const NodeParameters parameters_;
  const bool by_onednn_, float32_;
};

}  // namespace tessera
