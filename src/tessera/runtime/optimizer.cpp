#include "tessera/runtime/optimizer.h"

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <numbers>

#include "tessera/base/error.h"

namespace tessera {

double learning_rate(const LearningRateOptions& o, double base, std::int64_t step, std::int64_t total_steps) {
  if (step < o.warmup_steps) return base * static_cast<double>(step + 1) / static_cast<double>(o.warmup_steps);
  const auto after = static_cast<double>(step - o.warmup_steps);
  if (o.schedule == "step")
    return base * std::pow(o.step_factor, std::floor(after / static_cast<double>(o.step_every)));
  if (o.schedule == "cosine") {
    const auto span = static_cast<double>(std::max<std::int64_t>(1, total_steps - o.warmup_steps));
    return base * 0.5 * (1 + std::cos(std::numbers::pi * std::min(1.0, after / span)));
  }
  ensure(o.schedule == "constant", "no learning-rate schedule '", o.schedule, "'");
  return base;
}

struct Optimizer::Impl {
  double clip_norm = 0;
  at::Tensor gradients;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
};

Optimizer::Optimizer(const OptimizerOptions& o, at::Tensor values, at::Tensor gradients)
    : impl_(std::make_unique<Impl>()) {
  impl_->clip_norm = o.clip_norm;
  impl_->gradients = gradients;
  values.mutable_grad() = gradients;
  const std::vector<at::Tensor> all{values};
  if (o.name == "sgd")
    impl_->optimizer = std::make_unique<torch::optim::SGD>(
        all, torch::optim::SGDOptions(o.lr).momentum(o.momentum).weight_decay(o.weight_decay));
  else if (o.name == "adam")
    impl_->optimizer =
        std::make_unique<torch::optim::Adam>(all, torch::optim::AdamOptions(o.lr).weight_decay(o.weight_decay));
  else if (o.name == "adamw")
    impl_->optimizer =
        std::make_unique<torch::optim::AdamW>(all, torch::optim::AdamWOptions(o.lr).weight_decay(o.weight_decay));
  else
    throw UsageError(concat("--optimizer ", o.name, " is not one of sgd, adam, adamw"));
}

Optimizer::~Optimizer() = default;
Optimizer::Optimizer(Optimizer&&) noexcept = default;

bool Optimizer::clips() const { return impl_->clip_norm > 0; }

void Optimizer::clip(double norm) {
  // As torch does it, with the same guard against a norm of zero.
  const double factor = impl_->clip_norm / (norm + 1e-6);
  if (clips() && factor < 1) impl_->gradients.mul_(factor);
}

void Optimizer::step(double lr) {
  for (auto& group : impl_->optimizer->param_groups()) group.options().set_lr(lr);
  impl_->optimizer->step();
}

}  // namespace tessera
