#include <torch/nn/functional/loss.h>
#include <torch/nn/functional/padding.h>
#include <torch/nn/functional/upsampling.h>
#include <torch/types.h>

#include "tessera/oracle/reference.h"

namespace tessera {
namespace {

using torch::IntArrayRef;
namespace F = torch::nn::functional;

// Padding that differs between the ends, or crops, is done beforehand. Order of pad(): left, right, top, bottom.
torch::Tensor padded(const torch::Tensor& x, const Windows& w, double value) {
  return F::pad(
      x, F::PadFuncOptions({w.width.pad_begin, w.width.pad_end, w.height.pad_begin, w.height.pad_end}).value(value));
}

torch::Tensor average(const torch::Tensor& x, const AvgPool& op) {
  const auto &rows = op.windows.height, &columns = op.windows.width;
  // In channels-last memory on CUDA torch 2.11 takes one side's padding for both where they differ, and its gradient is
  // wrong; in rows of one channel it is not.
  if (rows.hangs_over)
    return torch::avg_pool2d(x.contiguous(), {rows.kernel, columns.kernel}, {rows.stride, columns.stride},
                             {rows.pad_begin, columns.pad_begin}, true, op.count_include_pad);
  const auto sum = [&](const torch::Tensor& t) {
    const auto &h = op.windows.height, &w = op.windows.width;
    return torch::avg_pool2d(padded(t, op.windows, 0), {h.kernel, w.kernel}, {h.stride, w.stride}, 0, false, true, 1);
  };
  if (op.count_include_pad) return sum(x) / static_cast<double>(op.windows.height.kernel * op.windows.width.kernel);
  return sum(x) / sum(torch::ones({1, 1, x.size(2), x.size(3)}, x.options()));
}

torch::Tensor cropped(const torch::Tensor& x, const Shape& shape) {
  return x.narrow(2, 0, shape.height).narrow(3, 0, shape.width);
}

// One number for each element, by its place in the batch: samples, rows, columns, channels.
torch::Tensor uniform_like(const torch::Tensor& x, const RandomStream& random, std::int64_t first_sample) {
  torch::Tensor out = torch::empty({x.size(0), x.size(2), x.size(3), x.size(1)}, torch::kDouble);
  const std::int64_t first = first_sample * out.stride(0);
  for (std::int64_t i = 0; i < out.numel(); ++i)
    out.data_ptr<double>()[i] = random.uniform(static_cast<std::uint64_t>(first + i));
  return out.permute({0, 3, 1, 2}).to(x.device());
}

torch::Tensor convolved(const ReferenceArgs& a) {
  const auto& op = a.op<Conv>();
  const auto &h = op.windows.height, &w = op.windows.width;
  return torch::conv2d(padded(a.x(), op.windows, 0), a.parameter("weight"), a.parameter_if(op.options.bias, "bias"),
                       IntArrayRef{h.stride, w.stride}, IntArrayRef{0, 0}, IntArrayRef{h.dilation, w.dilation},
                       op.options.groups);
}

torch::Tensor batch_normed(const ReferenceArgs& a) {
  const auto& norm = a.op<Norm>().norm;
  const bool live = norm.live() && !a.evaluating;
  if (live) a.parameter("num_batches_tracked").add_(1);
  return torch::batch_norm(a.x(), a.parameter_if(norm.affine, "weight"), a.parameter_if(norm.affine, "bias"),
                           a.parameter("running_mean"), a.parameter("running_var"), live, norm.momentum, norm.epsilon,
                           false);
}

torch::Tensor group_normed(const ReferenceArgs& a) {
  const auto& norm = a.op<Norm>().norm;
  return torch::group_norm(a.x(), norm.groups > 0 ? norm.groups : a.x().size(1), a.parameter_if(norm.affine, "weight"),
                           a.parameter_if(norm.affine, "bias"), norm.epsilon);
}

torch::Tensor layer_normed(const ReferenceArgs& a) {
  const auto& o = a.op<LayerNorm>().options;
  return torch::layer_norm(a.x().permute({0, 2, 3, 1}), {a.x().size(1)}, a.parameter_if(o.affine, "weight"),
                           a.parameter_if(o.affine, "bias"), o.epsilon)
      .permute({0, 3, 1, 2});
}

torch::Tensor dropped(const ReferenceArgs& a) {
  if (a.evaluating) return a.x();
  return a.x() * kept_by(a) / (1 - a.op<Dropout>().probability);
}

torch::Tensor pooled(const ReferenceArgs& a) {
  const auto& op = a.op<MaxPool>();
  const auto &h = op.windows.height, &w = op.windows.width;
  return torch::max_pool2d(padded(a.x(), op.windows, -std::numeric_limits<double>::infinity()), {h.kernel, w.kernel},
                           {h.stride, w.stride}, 0, 1, h.hangs_over)
      .narrow(2, 0, a.node.shape.height)
      .narrow(3, 0, a.node.shape.width);
}

torch::Tensor transposed(const ReferenceArgs& a) {
  const auto& o = a.op<ConvTranspose>().options;
  const auto pair = [](const Pair& p) { return std::vector<std::int64_t>{p.height, p.width}; };
  return cropped(torch::conv_transpose2d(a.x(), a.parameter("weight"), a.parameter_if(o.bias, "bias"), pair(o.scale),
                                         pair(o.pad), pair(o.output_pad), o.groups, pair(o.dilation)),
                 a.node.shape);
}

torch::Tensor enlarged(const ReferenceArgs& a) {
  return cropped(F::interpolate(a.x(), F::InterpolateFuncOptions()
                                           .scale_factor(std::vector<double>{2, 2})
                                           .mode(torch::kBilinear)
                                           .align_corners(false)),
                 a.node.shape);
}

torch::Tensor linear(const ReferenceArgs& a) {
  return torch::linear(a.x().flatten(1), a.parameter("weight"), a.parameter_if(a.op<Linear>().options.bias, "bias"))
      .unsqueeze(2)
      .unsqueeze(3);
}

// The Dice losses of samples, added up, from their definition.
torch::Tensor dice(const torch::Tensor& logits, const torch::Tensor& labels) {
  const torch::Tensor counts = labels.ne(CrossEntropy::ignored_label).unsqueeze(1).to(logits.dtype());
  const torch::Tensor is_class =
      torch::one_hot(labels.to(torch::kLong).masked_fill(labels.eq(CrossEntropy::ignored_label), 0), logits.size(1))
          .permute({0, 3, 1, 2})
          .to(logits.dtype()) *
      counts;
  const torch::Tensor probability = torch::softmax(logits, 1) * counts;
  const auto over = [](const torch::Tensor& t) { return t.sum(IntArrayRef{2, 3}); };
  return (1 - (2 * over(probability * is_class) + 1e-5) / (over(probability) + over(is_class) + 1e-5)).mean(1).sum();
}

torch::Tensor binary_loss(const ReferenceArgs& a) {
  const LossOptions& o = a.op<CrossEntropy>().options;
  const torch::Tensor yes = a.labels.to(a.x().dtype()) * (1 - o.smoothing) + o.smoothing / 2;
  auto sum = F::BinaryCrossEntropyWithLogitsFuncOptions().reduction(torch::kSum);
  if (!o.class_weights.empty()) sum.pos_weight(torch::tensor(o.class_weights, torch::kDouble).to(a.x().options()));
  const auto of_head = [&](const torch::Tensor& x) {
    return F::binary_cross_entropy_with_logits(x.flatten(1), yes, sum) / x.size(1);
  };
  torch::Tensor total = of_head(a.x());
  for (std::size_t head = 1; head < a.inputs.size(); ++head) total = total + o.auxiliary * of_head(a.inputs[head]);
  return total;
}

torch::Tensor loss(const ReferenceArgs& a) {
  const LossOptions& o = a.op<CrossEntropy>().options;
  if (a.op<CrossEntropy>().labels == LabelKind::several) return binary_loss(a);
  auto sum = F::CrossEntropyFuncOptions().reduction(torch::kSum).label_smoothing(o.smoothing);
  if (!o.class_weights.empty()) sum.weight(torch::tensor(o.class_weights, torch::kDouble).to(a.x().options()));
  const bool image = a.op<CrossEntropy>().labels == LabelKind::image;
  if (!image) sum.ignore_index(CrossEntropy::ignored_label);
  const auto of_head = [&](const torch::Tensor& x) {
    torch::Tensor value = F::cross_entropy(image ? x.flatten(1) : x, a.labels, sum);
    if (o.dice > 0) value = value + o.dice * a.terms_per_sample * dice(x, a.labels);
    return value;
  };
  torch::Tensor total = of_head(a.x());
  for (std::size_t head = 1; head < a.inputs.size(); ++head) total = total + o.auxiliary * of_head(a.inputs[head]);
  return total;
}

torch::Tensor padded_by(const ReferenceArgs& a) {
  const auto& o = a.op<Pad>().options;
  const Pair after = o.after.value_or(o.before);
  auto options = F::PadFuncOptions({o.before.width, after.width, o.before.height, after.height});
  switch (o.mode) {
    case PadMode::zeros:
      break;
    case PadMode::reflect:
      options.mode(torch::kReflect);
      break;
    case PadMode::replicate:
      options.mode(torch::kReplicate);
      break;
    case PadMode::circular:
      options.mode(torch::kCircular);
      break;
  }
  return F::pad(a.x(), options);
}

torch::Tensor resized(const ReferenceArgs& a) {
  const auto& o = a.op<Resize>().options;
  F::InterpolateFuncOptions options;
  if (o.size) options.size(std::vector<std::int64_t>{o.size->height, o.size->width});
  if (o.factor) options.scale_factor(std::vector<double>{*o.factor, *o.factor});
  if (o.mode == ResizeMode::nearest) return F::interpolate(a.x(), options.mode(torch::kNearest));
  return F::interpolate(a.x(), options.mode(torch::kBilinear).align_corners(o.align_corners));
}

std::vector<std::int64_t> sizes_of(const ReferenceArgs& a) { return {a.node.shape.height, a.node.shape.width}; }

// Torch 1.13 has no derivative of its own channel_shuffle.
torch::Tensor dealt(const ReferenceArgs& a) {
  const std::int64_t groups = a.op<ChannelShuffle>().groups;
  return a.x().unflatten(1, IntArrayRef{groups, a.x().size(1) / groups}).transpose(1, 2).flatten(1, 2);
}

double parameter_of(const ReferenceArgs& a) { return a.op<Activate>().activation.parameter; }

std::map<std::string, Reference, std::less<>> built_in() {
  using A = const ReferenceArgs&;
  return {
      {"conv", convolved},
      {"conv_transpose", transposed},
      {"upsample", enlarged},
      {"batch_norm", batch_normed},
      {"group_norm", group_normed},
      {"instance_norm", group_normed},
      {"layer_norm", layer_normed},
      {"scale", [](A a) { return a.x() * a.parameter(a.op<Norm>().scale.suffix); }},
      {"dropout", dropped},
      {"relu", [](A a) { return torch::relu(a.x()); }},
      {"relu6", [](A a) { return torch::relu6(a.x()); }},
      {"leaky_relu", [](A a) { return torch::leaky_relu(a.x(), parameter_of(a)); }},
      {"elu", [](A a) { return torch::elu(a.x(), parameter_of(a)); }},
      {"silu", [](A a) { return torch::silu(a.x()); }},
      {"gelu", [](A a) { return torch::gelu(a.x()); }},
      {"gelu_tanh", [](A a) { return torch::gelu(a.x(), "tanh"); }},
      {"sigmoid", [](A a) { return torch::sigmoid(a.x()); }},
      {"tanh", [](A a) { return torch::tanh(a.x()); }},
      // Torch's own of these two have derivatives of single precision, on some devices.
      {"hard_sigmoid", [](A a) { return torch::relu6(a.x() + 3) / 6; }},
      {"hard_swish", [](A a) { return a.x() * torch::relu6(a.x() + 3) / 6; }},
      {"mish", [](A a) { return torch::mish(a.x()); }},
      {"softsign", [](A a) { return a.x() / (1 + a.x().abs()); }},
      {"hard_tanh", [](A a) { return torch::hardtanh(a.x(), -parameter_of(a), parameter_of(a)); }},
      {"times", [](A a) { return a.x() * parameter_of(a); }},
      {"plus", [](A a) { return a.x() + parameter_of(a); }},
      {"add", [](A a) { return a.inputs[0] + a.inputs[1]; }},
      {"multiply", [](A a) { return a.inputs[0] * a.inputs[1]; }},
      {"prelu", [](A a) { return torch::prelu(a.x(), a.parameter("weight")); }},
      {"concat", [](A a) { return torch::cat(a.inputs, 1); }},
      {"slice_channels", [](A a) { return a.x().narrow(1, a.op<SliceChannels>().first, a.op<SliceChannels>().count); }},
      {"channel_shuffle", dealt},
      {"pad", padded_by},
      {"resize", resized},
      {"adaptive_avg_pool", [](A a) { return torch::adaptive_avg_pool2d(a.x(), sizes_of(a)); }},
      {"adaptive_max_pool", [](A a) { return std::get<0>(torch::adaptive_max_pool2d(a.x(), sizes_of(a))); }},
      {"max_pool", pooled},
      {"avg_pool", [](A a) { return average(a.x(), a.op<AvgPool>()); }},
      {"global_avg_pool",
       [](A a) {
         return a.x().mean(IntArrayRef{2, 3}, true);
       }},
      {"flatten", [](A a) { return a.x().flatten(1).unsqueeze(2).unsqueeze(3); }},
      {"linear", linear},
      {"cross_entropy", loss},
  };
}

}  // namespace

torch::Tensor kept_by(const ReferenceArgs& dropout) {
  const auto& op = dropout.op<Dropout>();
  torch::Tensor like = dropout.x();
  if (op.of != DropoutOf::elements) like = like.narrow(2, 0, 1).narrow(3, 0, 1);
  if (op.of == DropoutOf::samples) like = like.narrow(1, 0, 1);
  return uniform_like(like, dropout.random(), dropout.first_sample).lt(1 - op.probability);
}

std::map<std::string, Reference, std::less<>>& references() {
  static std::map<std::string, Reference, std::less<>> all = built_in();
  return all;
}

}  // namespace tessera
