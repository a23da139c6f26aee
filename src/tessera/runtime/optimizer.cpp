#include "tessera/runtime/optimizer.h"

#include <ATen/ops/zeros_like.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <numbers>
#include <type_traits>

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
  OptimizerOptions options;
  at::Tensor values, gradients;
  std::unique_ptr<torch::optim::Optimizer> optimizer;

  template <class State>
  State& state();
};

namespace {

// torch 1.13 finds a tensor's state by text, later versions by address.
template <class Key>
Key state_key(const at::Tensor& tensor) {
  if constexpr (std::is_same_v<Key, std::string>)
    return concat(static_cast<const void*>(tensor.unsafeGetTensorImpl()));
  else
    return tensor.unsafeGetTensorImpl();
}

template <class State>
std::vector<OptimizerState> moments(State& state, const at::Tensor& values) {
  if (!state.exp_avg().defined()) {
    state.exp_avg(at::zeros_like(values));
    state.exp_avg_sq(at::zeros_like(values));
  }
  return {{"exp_avg", state.exp_avg()}, {"exp_avg_sq", state.exp_avg_sq()}};
}

}  // namespace

// Made where there is none yet.
template <class State>
State& Optimizer::Impl::state() {
  auto& states = optimizer->state();
  auto& state = states[state_key<typename std::decay_t<decltype(states)>::key_type>(values)];
  if (!state) state = std::make_unique<State>();
  return static_cast<State&>(*state);
}

Optimizer::Optimizer(const OptimizerOptions& o, at::Tensor values, at::Tensor gradients)
    : impl_(std::make_unique<Impl>()) {
  impl_->options = o;
  impl_->values = values;
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

bool Optimizer::clips() const { return impl_->options.clip_norm > 0; }

void Optimizer::clip(double norm) {
  // As torch does it, with the same guard against a norm of zero.
  const double factor = impl_->options.clip_norm / (norm + 1e-6);
  if (clips() && factor < 1) impl_->gradients.mul_(factor);
}

void Optimizer::step(double lr) {
  for (auto& group : impl_->optimizer->param_groups()) group.options().set_lr(lr);
  impl_->optimizer->step();
}

std::vector<OptimizerState> Optimizer::state() {
  if (impl_->options.name == "adam") return moments(impl_->state<torch::optim::AdamParamState>(), impl_->values);
  if (impl_->options.name == "adamw") return moments(impl_->state<torch::optim::AdamWParamState>(), impl_->values);
  if (impl_->options.momentum == 0) return {};
  auto& state = impl_->state<torch::optim::SGDParamState>();
  if (!state.momentum_buffer().defined()) state.momentum_buffer(at::zeros_like(impl_->values));
  return {{"momentum_buffer", state.momentum_buffer()}};
}

void Optimizer::set_steps(std::int64_t steps) {
  state();
  if (impl_->options.name == "adam") impl_->state<torch::optim::AdamParamState>().step(steps);
  if (impl_->options.name == "adamw") impl_->state<torch::optim::AdamWParamState>().step(steps);
}

}  // namespace tessera
