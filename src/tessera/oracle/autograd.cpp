#include "tessera/oracle/autograd.h"

#include <torch/types.h>  // before what it leaves out

#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "tessera/base/error.h"
#include "tessera/oracle/reference.h"

namespace tessera {
struct AutogradOracle::Impl {
  const Graph& graph;
  TrainOptions options;
  std::map<std::string, torch::Tensor> values;
  std::vector<torch::Tensor> trainable;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  std::int64_t step = 0, first_sample = 0;
  double terms_per_sample = 1;
  bool evaluating = false;
  const ForeignModule* foreign = nullptr;
  std::unique_ptr<ForeignNetwork> network;

  torch::Tensor run(const Node& node, const std::vector<torch::Tensor>& in, const torch::Tensor& labels) {
    const auto found = references().find(node.op->kind());
    if (found == references().end())
      throw Error(concat("the oracle does not know operation '", node.op->kind(), "' of node '", node.name,
                         "'; register it with RegisterReference (docs/own_model.md)"));
    return found->second({node, in, [&](const std::string& suffix) { return values.at(node.parameter_name(suffix)); },
                          labels, evaluating, options.seed, step, first_sample, terms_per_sample});
  }

  torch::Tensor loss_sum(const torch::Tensor& images, const torch::Tensor& labels) {
    if (!network) return value_of(graph.nodes().size() - 1, images, labels);
    return run(graph.nodes().back(), foreign_logits(images), labels);
  }

  // What the loss looks at, computed by somebody else's code with our parameters.
  std::vector<torch::Tensor> foreign_logits(const torch::Tensor& images) {
    for (const auto& [name, spec] : graph.parameters())
      network->bind(name, spec.as_matrix ? values.at(name).squeeze(3).squeeze(2) : values.at(name));
    const DropoutsOf dropouts(graph, foreign->dropouts, {options.seed, step, first_sample});
    const auto all = network->forward(images);
    std::vector<torch::Tensor> out;
    for (const std::size_t i : foreign->outputs) {
      torch::Tensor logits = all.at(i);
      if (logits.dim() == 4 && logits.sizes().slice(2) != images.sizes().slice(2) && logits[0][0].numel() > 1)
        logits = torch::upsample_bilinear2d(logits, images.sizes().slice(2), /*align_corners=*/false);
      out.push_back(logits);
    }
    return out;
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

AutogradOracle::AutogradOracle(const Graph& graph, const Parameters& initial, const TrainOptions& options,
                               const ForeignModule* foreign)
    : impl_(new Impl{graph, options, {}, {}, nullptr}) {
  impl_->foreign = foreign;
  if (foreign) impl_->network = foreign->open(options.activations());
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
  const auto weights = impl_->graph.loss_weights();
  auto terms = static_cast<double>(images.size(0));
  if (!weights.empty()) {
    terms = 0;
    for (std::size_t c = 0; c < weights.size(); ++c)
      terms += weights[c] * labels.eq(static_cast<std::int64_t>(c)).sum().item<double>();
  } else if (by_pixel) {
    terms = labels.ne(CrossEntropy::ignored_label).sum().item<double>();
  }
  impl_->terms_per_sample = terms / static_cast<double>(images.size(0));
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
