#include "tessera/ops/torch_conv.h"

#include <ATen/Parallel.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "tessera/base/instruction_set.h"
#include "tessera/ops/cpu/few.h"
#include "tessera/ops/reach.h"
#include "tessera/ops/torch_compat.h"

namespace tessera {
namespace {

// A slab's pixels one below the other, and such a matrix as images again.
at::Tensor pixels_of(const at::Tensor& t) { return t.permute({0, 2, 3, 1}).reshape({-1, t.size(1)}); }
at::Tensor images_of(const at::Tensor& pixels, std::int64_t samples, std::int64_t height) {
  return pixels.reshape({samples, height, -1, pixels.size(1)}).permute({0, 3, 1, 2});
}

// As torch is given a slab for a way, and what it makes of it.
at::Tensor prepared(TorchWay way, const at::Tensor& t) {
  if (way == TorchWay::rows_as_samples) return images_of(pixels_of(t), t.size(0) * t.size(2), 1);
  return way == TorchWay::blocked ? t.contiguous() : t;
}
at::Tensor whole_again(TorchWay way, const at::Tensor& t, const at::Tensor& input) {
  return way == TorchWay::rows_as_samples ? images_of(pixels_of(t), input.size(0), input.size(2)) : t;
}

// Weights as a matrix, one row per output channel; a view.
at::Tensor matrix(const at::Tensor& weights) { return weights.permute({0, 2, 3, 1}).view({weights.size(0), -1}); }

// Whether as much padding behind the view as before it gives what is wanted.
bool same_padding(const Reach& r, const Window& w, const Interval& wanted) {
  const std::int64_t room = r.view.size() + 2 * r.before - w.extent();
  return !r.view.empty() && room >= 0 && room / w.stride + 1 == wanted.size();
}

}  // namespace

std::string_view to_string(TorchWay way) {
  constexpr std::array<std::string_view, 4> names{"convolution", "rows", "product", "blocked"};
  return names[static_cast<std::size_t>(way)];
}

// What ATen's convolution is asked: its padding is the same on both ends, so what is left is padded by hand.
struct TorchConv::Problem {
  at::Tensor input;
  Box box;  // of the value, covered by `input` without the padding by hand
  std::array<std::int64_t, 2> pad{0, 0};
  std::array<std::int64_t, 2> extra_before{0, 0};
  bool padded = false;
  std::array<std::int64_t, 2> stride{1, 1};
  std::vector<std::int64_t> whole = {};  // sizes of the input before pixels were picked; empty: none were
  std::int64_t out_height = 0, out_width = 0;
  TorchWay way = TorchWay::convolution;
};

TorchConv::TorchConv(const Conv& op, const Shape& input, NodeParameters parameters, bool on_gpu, bool float32)
    : op_(op), input_(input), parameters_(std::move(parameters)), by_onednn_(!on_gpu), float32_(float32) {}

// Without padding: then the pixels are picked first, whatever the stride, and each is an output.
bool TorchConv::of_single_pixels() const {
  const auto plain = [](const Window& w) { return w.kernel == 1 && w.pad_begin == 0 && w.pad_end == 0; };
  return plain(op_.windows.height) && plain(op_.windows.width) && op_.options.groups == 1;
}

// Whether our own products multiply few windows with the weights: they share the work out to all threads.
bool TorchConv::few() const {
  return by_onednn_ && float32_ && few_can(op_.windows.height.kernel * op_.windows.width.kernel * input_.channels);
}

TorchWay TorchConv::way(const Box& out) const {
  if (!by_onednn_ || op_.options.groups > 1 || (at::get_num_threads() > 1 && !few())) return TorchWay::convolution;
  if (out.volume() < 4 * std::min(input_.channels, op_.options.out)) return TorchWay::product;
  if (at::get_num_threads() > 1) return TorchWay::convolution;
  const bool rows = float32_ && of_single_pixels() && out.batch().size() * out.height().size() >= 16;
  return rows ? TorchWay::rows_as_samples : TorchWay::convolution;
}

bool TorchConv::may_pay(TorchWay way, const Box& out) const {
  switch (way) {
    case TorchWay::rows_as_samples:
      return of_single_pixels();
    // Windows of several pixels are copied, each pixel as often as it is seen.
    case TorchWay::product:
      return op_.options.groups == 1 && (of_single_pixels() || out.volume() <= 4096);
    default:
      return true;
  }
}

Slab TorchConv::forward(TorchWay way, const Slab& input, const Box& out) const {
  return {channels_last(convolved(problem(way, input, out))), out};
}

Slab TorchConv::input_gradient(TorchWay way, const Slab& input, const Slab& gradient) const {
  const Problem p = problem(way, input, gradient.box);
  at::Tensor dx = input_gradient_of(p, gradient.data);
  if (!p.whole.empty()) {
    const at::Tensor picked = dx;
    dx = at::empty(p.whole, dx.options(), at::MemoryFormat::ChannelsLast).zero_();
    every_stride(dx).narrow(2, 0, picked.size(2)).narrow(3, 0, picked.size(3)).copy_(picked);
  }
  if (p.padded)
    dx = dx.narrow(2, p.extra_before[0], p.box.height().size()).narrow(3, p.extra_before[1], p.box.width().size());
  return {channels_last(dx), p.box};
}

void TorchConv::weight_gradient(TorchWay way, const Slab& input, const Slab& gradient, const at::Tensor& sum) const {
  const Problem p = problem(way, input, gradient.box);
  if (way != TorchWay::product) {
    sum.add_(std::get<1>(backward(p, gradient.data, {false, true, false})));
  } else if (few()) {
    few_weight_gradient(pixels_of(gradient.data).contiguous(), windows_of(p).contiguous(), matrix(sum));
  } else {
    matrix(sum).addmm_(pixels_of(gradient.data).t(), windows_of(p));
  }
}

double TorchConv::element_bytes() const {
  return static_cast<double>(c10::elementSize(parameters_.values[0].scalar_type()));
}
bool TorchConv::single() const { return op_.windows.height.kernel == 1 && op_.windows.width.kernel == 1; }

// What torch is given in place of a slab that covers `in`.
Box TorchConv::view_of(const Box& out, const Box& in) const {
  const Box needed = op_.windows.input_of(out);
  return in.contains(needed) ? needed : intersect(needed, in);
}

// Where torch cannot be told what is wanted, as it pads both sides alike.
bool TorchConv::pads_by_hand(const Box& out, const Box& in) const {
  const auto by_hand = [&](Axis axis, const Window& w, std::int64_t size) {
    return !same_padding(reach(w, out[axis], in[axis], size), w, out[axis]);
  };
  return by_hand(Axis::height, op_.windows.height, input_.height) ||
         by_hand(Axis::width, op_.windows.width, input_.width);
}

double TorchConv::padded_bytes(const Box& out) const {
  return element_bytes() * static_cast<double>(op_.windows.input_of(out).volume() * input_.channels);
}

double TorchConv::afterwards(const Box& out, const Box& in, ConvPass pass) const {
  return pass == ConvPass::input_gradient && pads_by_hand(out, in) ? padded_bytes(out) : 0;
}

double TorchConv::preparation(const Box& out, const Box& in, ConvPass pass) const {
  const double bytes = element_bytes(), pixels = bytes * static_cast<double>(out.volume() * input_.channels);
  const auto &rows = op_.windows.height, &columns = op_.windows.width;
  const bool picked = single() && (rows.stride > 1 || columns.stride > 1) && by_onednn_;
  // The pixels that are looked at are picked out of the input, and so is their gradient.
  double sum = picked ? (pass == ConvPass::input_gradient ? 2 : 1) * pixels : 0;
  if (pads_by_hand(out, in)) return sum + padded_bytes(out);
  // A part of the input that has gaps is copied first.
  const Box view = view_of(out, in);
  const bool gaps = view.width().size() + columns.stride <= in.width().size() ||
                    (view.batch().size() > 1 && view.height().size() + rows.stride <= in.height().size());
  if (gaps && !picked && pass != ConvPass::input_gradient)
    sum += bytes * static_cast<double>(view.volume() * input_.channels);
  return sum;
}

double TorchConv::scratch(TorchWay way, const Box& out, const Box& in, ConvPass pass) const {
  const double bytes = element_bytes();
  const auto &rows = op_.windows.height, &columns = op_.windows.width;
  const Box view = view_of(out, in);
  if (way == TorchWay::product) {
    // A product: the windows are written out, of a padded copy; then our own products want them in panels.
    const std::int64_t taps_and_channels = rows.kernel * columns.kernel * input_.channels;
    const double windows = single() ? 0 : bytes * static_cast<double>(out.volume() * taps_and_channels);
    const Box needed = op_.windows.input_of(out);
    const double padded = single() ? 0 : 2 * bytes * static_cast<double>(needed.volume() * input_.channels);
    const double panels = few() && pass == ConvPass::forward
                              ? bytes * static_cast<double>(few_forward_scratch(out.volume(), taps_and_channels))
                              : 0;
    return windows + std::max(padded, panels);
  }
  // oneDNN has the weights, and their gradient, in an order of its own; without AVX-512 so it has what larger windows
  // read and write. Blocked is a copy of all of that in torch's order, and one in oneDNN's.
  const double all = bytes * static_cast<double>(view.volume() * input_.channels + out.volume() * op_.options.out);
  const bool dilated = rows.dilation > 1 || columns.dilation > 1;
  double sum = 0;
  if (way == TorchWay::blocked)
    sum += (dilated || op_.options.groups > 1 ? 3 : 2) * all;
  else if (by_onednn_ && !single() && instruction_set() != InstructionSet::avx512)
    sum += all;
  // For gradients of some windows oneDNN has a product only, of the windows of a sample.
  const bool large = way == TorchWay::blocked && std::max(rows.kernel, columns.kernel) > 5;
  if (by_onednn_ && pass != ConvPass::forward && (dilated || large))
    sum += bytes * static_cast<double>(out.volume() * input_.channels * rows.kernel * columns.kernel) /
           static_cast<double>(out.batch().size());
  return sum + of_weights(pass);
}

double TorchConv::scratch_of_larger(double measured, const Box& part, const Box& out, ConvPass pass) const {
  const double same = std::min(measured, of_weights(pass));
  return same + (measured - same) * static_cast<double>(out.volume()) / static_cast<double>(part.volume());
}

// Bytes of the weights in oneDNN's order; and of their gradient in torch's order on the way.
double TorchConv::of_weights(ConvPass pass) const {
  const double weights = element_bytes() * static_cast<double>(parameters_.values[0].numel());
  return ordered_weights(pass) + (pass == ConvPass::weight_gradient ? 2 : 0) * weights;
}

// Bytes of the weights in an order of oneDNN's: blocks of 16 channels, also where a group has fewer. Forward takes the
// few channels of images as they are.
double TorchConv::ordered_weights(ConvPass pass) const {
  const at::Tensor& w = parameters_.values[0];
  const std::int64_t groups = op_.options.groups;
  const bool blocks = by_onednn_ && (pass != ConvPass::forward || groups > 1);
  const auto channels = [&](std::int64_t n) { return blocks ? (n / groups + 15) / 16 * 16 : n / groups; };
  return element_bytes() *
         static_cast<double>(w.size(2) * w.size(3) * groups * channels(input_.channels) * channels(op_.options.out));
}

// The pixels that a window of one pixel looks at.
at::Tensor TorchConv::every_stride(const at::Tensor& t) const {
  return t.slice(2, 0, c10::nullopt, op_.windows.height.stride).slice(3, 0, c10::nullopt, op_.windows.width.stride);
}
std::array<std::int64_t, 2> TorchConv::dilation() const {
  return {op_.windows.height.dilation, op_.windows.width.dilation};
}

TorchConv::Problem TorchConv::problem(TorchWay way, const Slab& slab, const Box& out) const {
  const Reach rows = reach(op_.windows.height, out.height(), slab.box.height(), input_.height);
  const Reach columns = reach(op_.windows.width, out.width(), slab.box.width(), input_.width);
  Problem p;
  p.box = slab.box;
  p.box[Axis::batch] = out.batch();
  p.box[Axis::height] = rows.view;
  p.box[Axis::width] = columns.view;
  p.input = narrowed(slab, p.box).data;
  std::array<std::int64_t, 4> extra{};  // left, right, top, bottom, as constant_pad_nd wants it
  const auto settle = [&](const Reach& r, const Window& w, const Interval& wanted, std::size_t axis) {
    if (same_padding(r, w, wanted)) {
      p.pad[axis] = r.before;
    } else {
      p.extra_before[axis] = r.before;
      extra[axis == 0 ? 2 : 0] = r.before;
      extra[axis == 0 ? 3 : 1] = r.after;
      p.padded = true;
    }
  };
  settle(rows, op_.windows.height, out.height(), 0);
  settle(columns, op_.windows.width, out.width(), 1);
  if (p.padded) p.input = channels_last(at::constant_pad_nd(p.input, extra, 0));
  p.stride = {op_.windows.height.stride, op_.windows.width.stride};
  // oneDNN 2.6 writes past its scratch memory in the weight gradient of these, and the result is wrong. Picking the
  // pixels beforehand is what it would do inside.
  if (by_onednn_ && op_.windows.height.kernel == 1 && op_.windows.width.kernel == 1 &&
      p.stride != std::array<std::int64_t, 2>{1, 1} && p.pad == std::array<std::int64_t, 2>{0, 0}) {
    p.whole = p.input.sizes().vec();
    p.input = channels_last(every_stride(p.input).narrow(2, 0, out.height().size()).narrow(3, 0, out.width().size()));
    p.stride = {1, 1};
  }
  p.out_height = out.height().size();
  p.out_width = out.width().size();
  p.way = way;
  return p;
}

// One row per window: its taps and their channels in the order of the weights. A view if windows are single pixels.
at::Tensor TorchConv::windows_of(const Problem& p) const {
  const at::Tensor x = p.pad == std::array<std::int64_t, 2>{0, 0}
                           ? p.input
                           : at::constant_pad_nd(p.input, {p.pad[1], p.pad[1], p.pad[0], p.pad[0]}, 0)
                                 .contiguous(at::MemoryFormat::ChannelsLast);
  const auto &rows = op_.windows.height, &columns = op_.windows.width;
  return x
      .as_strided({x.size(0), p.out_height, p.out_width, rows.kernel, columns.kernel, x.size(1)},
                  {x.stride(0), x.stride(2) * p.stride[0], x.stride(3) * p.stride[1], x.stride(2) * rows.dilation,
                   x.stride(3) * columns.dilation, x.stride(1)})
      .reshape({x.size(0) * p.out_height * p.out_width, -1});
}

// The transpose: every pixel gets the sum of what the windows that see it have for it.
at::Tensor TorchConv::sum_of_windows(const Problem& p, const at::Tensor& windows) const {
  const at::Tensor& x = p.input;
  const auto &rows = op_.windows.height, &columns = op_.windows.width;
  const at::Tensor taps = windows.view({x.size(0), p.out_height, p.out_width, rows.kernel, columns.kernel, x.size(1)});
  at::Tensor sum = at::zeros({x.size(0), x.size(2) + 2 * p.pad[0], x.size(3) + 2 * p.pad[1], x.size(1)}, x.options());
  for (std::int64_t i = 0; i < rows.kernel; ++i)
    for (std::int64_t j = 0; j < columns.kernel; ++j) {
      const std::int64_t top = i * rows.dilation, left = j * columns.dilation;
      sum.slice(1, top, top + (p.out_height - 1) * p.stride[0] + 1, p.stride[0])
          .slice(2, left, left + (p.out_width - 1) * p.stride[1] + 1, p.stride[1])
          .add_(taps.select(3, i).select(3, j));
    }
  return sum.narrow(1, p.pad[0], x.size(2)).narrow(2, p.pad[1], x.size(3)).permute({0, 3, 1, 2});
}

at::Tensor TorchConv::convolved(const Problem& p) const {
  const at::Tensor &x = p.input, &w = parameters_.values[0];
  const std::array<std::int64_t, 2> no_output_padding{0, 0};
  const OptionalTensor bias = op_.options.bias ? OptionalTensor(parameters_.values[1]) : OptionalTensor();
  if (p.way == TorchWay::product) {
    const at::Tensor windows = windows_of(p), weights = matrix(w);
    const at::Tensor y = few() ? few_forward(windows.contiguous(), weights) : at::mm(windows, weights.t());
    if (op_.options.bias) y.add_(*bias);
    return images_of(y, x.size(0), p.out_height);
  }
  return whole_again(p.way,
                     at::convolution(prepared(p.way, x), w, bias, p.stride, p.pad, dilation(), false, no_output_padding,
                                     op_.options.groups),
                     x);
}

at::Tensor TorchConv::input_gradient_of(const Problem& p, const at::Tensor& gradient) const {
  const at::Tensor &x = p.input, &w = parameters_.values[0];
  if (p.way == TorchWay::product) {
    const at::Tensor dy = pixels_of(gradient);
    const at::Tensor windows = few() ? few_input_gradient(dy.contiguous(), matrix(w)) : at::mm(dy, matrix(w));
    return of_single_pixels() ? images_of(windows, x.size(0), x.size(2)) : sum_of_windows(p, windows);
  }
  return whole_again(p.way, std::get<0>(backward(p, gradient, {true, false, false})), x);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> TorchConv::backward(const Problem& p, const at::Tensor& gradient,
                                                                   std::array<bool, 3> mask) const {
  const std::array<std::int64_t, 1> bias_sizes{op_.options.out};
  return at::convolution_backward(prepared(p.way, gradient), prepared(p.way, p.input), parameters_.values[0],
                                  at::OptionalIntArrayRef(bias_sizes), p.stride, p.pad, dilation(), false,
                                  std::array<std::int64_t, 2>{0, 0}, op_.options.groups, mask);
}

}  // namespace tessera
