#include "tessera/oracle/autograd.h"

#include <torch/torch.h>

#include "tessera/base/error.h"
#include "tessera/base/random.h"

namespace tessera {
namespace {

namespace F = torch::nn::functional;

// Padding that differs between the ends, or crops, is done beforehand. Order of pad(): left, right, top, bottom.
torch::Tensor padded(const torch::Tensor& x, const Windows& w, double value) {
  return F::pad(
      x, F::PadFuncOptions({w.width.pad_begin, w.width.pad_end, w.height.pad_begin, w.height.pad_end}).value(value));
}

torch::Tensor average(const torch::Tensor& x, const AvgPool& op) {
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

}  // namespace

struct AutogradOracle::Impl {
  const Graph& graph;
  TrainOptions options;
  std::map<std::string, torch::Tensor> values;
  std::vector<torch::Tensor> trainable;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  std::int64_t step = 0, first_sample = 0;
  bool evaluating = false;

  torch::Tensor parameter(const Node& node, const char* suffix) const { return values.at(node.name + "." + suffix); }

  torch::Tensor run(const Node& node, const std::vector<torch::Tensor>& in, const torch::Tensor& labels) {
    const Operation* op = node.op.get();
    if (auto* o = dynamic_cast<const Conv*>(op)) {
      const auto &h = o->windows.height, &w = o->windows.width;
      const auto bias = o->options.bias ? parameter(node, "bias") : torch::Tensor();
      return torch::conv2d(padded(in[0], o->windows, 0), parameter(node, "weight"), bias,
                           torch::IntArrayRef{h.stride, w.stride}, torch::IntArrayRef{0, 0},
                           torch::IntArrayRef{h.dilation, w.dilation}, o->options.groups);
    }
    if (auto* o = dynamic_cast<const ConvTranspose*>(op)) {
      const auto& scale = o->options.scale;
      return cropped(torch::conv_transpose2d(in[0], parameter(node, "weight"),
                                             o->options.bias ? parameter(node, "bias") : torch::Tensor(),
                                             torch::IntArrayRef{scale.height, scale.width}),
                     node.shape);
    }
    if (dynamic_cast<const Upsample*>(op))
      return cropped(F::interpolate(in[0], F::InterpolateFuncOptions()
                                               .scale_factor(std::vector<double>{2, 2})
                                               .mode(torch::kBilinear)
                                               .align_corners(false)),
                     node.shape);
    if (auto* o = dynamic_cast<const BatchNorm*>(op)) {
      if (!evaluating) parameter(node, "num_batches_tracked").add_(1);
      return torch::batch_norm(in[0], parameter(node, "weight"), parameter(node, "bias"),
                               parameter(node, "running_mean"), parameter(node, "running_var"), !evaluating,
                               o->options.momentum, o->options.epsilon, false);
    }
    if (auto* o = dynamic_cast<const Dropout*>(op)) {
      if (evaluating) return in[0];
      const double keep = 1 - o->probability;
      const RandomStream random(options.seed ^ stream_of(node.name), static_cast<std::uint64_t>(step));
      return in[0] * uniform_like(in[0], random, first_sample).lt(keep) / keep;
    }
    if (dynamic_cast<const Relu*>(op)) return torch::relu(in[0]);
    if (dynamic_cast<const Add*>(op)) return in[0] + in[1];
    if (dynamic_cast<const Concat*>(op)) return torch::cat(in, 1);
    if (auto* o = dynamic_cast<const MaxPool*>(op)) {
      const auto &h = o->windows.height, &w = o->windows.width;
      return torch::max_pool2d(padded(in[0], o->windows, -std::numeric_limits<double>::infinity()),
                               {h.kernel, w.kernel}, {h.stride, w.stride});
    }
    if (auto* o = dynamic_cast<const AvgPool*>(op)) return average(in[0], *o);
    if (dynamic_cast<const GlobalAvgPool*>(op)) return in[0].mean(torch::IntArrayRef{2, 3}, true);
    if (dynamic_cast<const Flatten*>(op)) return in[0].flatten(1).unsqueeze(2).unsqueeze(3);
    if (auto* o = dynamic_cast<const Linear*>(op))
      return torch::linear(in[0].flatten(1), parameter(node, "weight"),
                           o->options.bias ? parameter(node, "bias") : torch::Tensor())
          .unsqueeze(2)
          .unsqueeze(3);
    if (auto* o = dynamic_cast<const CrossEntropy*>(op)) {
      auto sum = F::CrossEntropyFuncOptions().reduction(torch::kSum);
      if (o->labels == LabelKind::image) return F::cross_entropy(in[0].flatten(1), labels, sum);
      return F::cross_entropy(in[0], labels, sum.ignore_index(CrossEntropy::ignored_label));
    }
    throw Error(concat("the oracle does not know operation '", op->kind(), "' of node '", node.name, "'"));
  }

  torch::Tensor loss_sum(const torch::Tensor& images, const torch::Tensor& labels) {
    return value_of(graph.nodes().size() - 1, images, labels);
  }

  torch::Tensor value_of(std::size_t last, const torch::Tensor& images, const torch::Tensor& labels) {
    std::vector<torch::Tensor> outputs{images};
    for (std::size_t n = 1; n <= last; ++n) {
      const Node& node = graph.nodes()[n];
      std::vector<torch::Tensor> in;
      for (Value v : node.inputs) in.push_back(outputs[static_cast<std::size_t>(v.id)]);
      outputs.push_back(run(node, in, labels));
    }
    return outputs.back();
  }
};

AutogradOracle::AutogradOracle(const Graph& graph, const Parameters& initial, const TrainOptions& options)
    : impl_(new Impl{graph, options, {}, {}, nullptr}) {
  for (const auto& p : initial.all()) {
    auto copy = p.value.detach().clone(at::MemoryFormat::Contiguous);
    if (p.trainable) {
      copy.requires_grad_(true);
      impl_->trainable.push_back(copy);
    }
    impl_->values.emplace(p.name, copy);
  }
  const auto& o = options.optimizer;
  if (o.name == "sgd")
    impl_->optimizer = std::make_unique<torch::optim::SGD>(
        impl_->trainable, torch::optim::SGDOptions(o.lr).momentum(o.momentum).weight_decay(o.weight_decay));
  else if (o.name == "adam")
    impl_->optimizer = std::make_unique<torch::optim::Adam>(
        impl_->trainable, torch::optim::AdamOptions(o.lr).weight_decay(o.weight_decay));
  else
    impl_->optimizer = std::make_unique<torch::optim::AdamW>(
        impl_->trainable, torch::optim::AdamWOptions(o.lr).weight_decay(o.weight_decay));
}

AutogradOracle::~AutogradOracle() = default;

double AutogradOracle::step(const at::Tensor& images, const at::Tensor& labels, std::int64_t micros) {
  impl_->optimizer->zero_grad();
  const bool by_pixel = impl_->graph.label_kind() == LabelKind::pixel;
  const double terms =
      by_pixel ? labels.ne(CrossEntropy::ignored_label).sum().item<double>() : static_cast<double>(images.size(0));
  const std::int64_t size = images.size(0) / micros;
  double loss = 0;
  for (std::int64_t m = 0; m < micros; ++m) {
    impl_->first_sample = m * size;
    const auto part = impl_->loss_sum(images.narrow(0, m * size, size).contiguous(), labels.narrow(0, m * size, size));
    (part / terms).backward();
    loss += part.item<double>();
  }
  const auto& o = impl_->options;
  if (o.on_gradients) {
    std::vector<at::Tensor> gradients;
    for (const auto& p : impl_->trainable) gradients.push_back(p.grad());
    o.on_gradients(gradients);
  }
  if (o.optimizer.clip_norm > 0) torch::nn::utils::clip_grad_norm_(impl_->trainable, o.optimizer.clip_norm);
  const double lr = learning_rate(o.learning_rate, o.optimizer.lr, impl_->step++, o.steps);
  for (auto& group : impl_->optimizer->param_groups()) group.options().set_lr(lr);
  impl_->optimizer->step();
  return loss / terms;
}

at::Tensor AutogradOracle::logits(const at::Tensor& images) {
  const torch::NoGradGuard no_gradients;
  impl_->evaluating = true;
  const auto last = static_cast<std::size_t>(impl_->graph.nodes().back().inputs[0].id);
  const at::Tensor out = impl_->value_of(last, images.contiguous(), {});
  impl_->evaluating = false;
  return out;
}

at::Tensor AutogradOracle::gradient(const std::string& name) const { return impl_->values.at(name).grad(); }
at::Tensor AutogradOracle::value(const std::string& name) const { return impl_->values.at(name).detach(); }

}  // namespace tessera
