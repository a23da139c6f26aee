#include "tessera/runtime/optimizer.h"

#include <ATen/Parallel.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <algorithm>
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

namespace {

// torch 1.13 finds a tensor's state by text, later versions by address.
template <class Key>
Key state_key(const at::Tensor& tensor) {
  if constexpr (std::is_same_v<Key, std::string>)
    return concat(static_cast<const void*>(tensor.unsafeGetTensorImpl()));
  else
    return tensor.unsafeGetTensorImpl();
}

// A rule goes over its numbers several times. On CPUs it is given pieces that stay in a core's second cache meanwhile,
// on GPUs all of them: there what counts is how many kernels are launched.
std::int64_t piece_size(const at::Tensor& values) {
  return values.is_cpu() ? at::get_num_threads() * (std::int64_t{1} << 16) : std::max<std::int64_t>(1, values.size(0));
}

}  // namespace

struct Optimizer::Impl {
  OptimizerOptions options;
  at::Tensor gradients;
  Interval share;                      // of the values, what is updated here
  std::vector<at::Tensor> pieces;      // of the share
  std::vector<OptimizerState> memory;  // the pieces' states are views of it
  std::unique_ptr<torch::optim::Optimizer> optimizer;

  template <class State>
  State& state_of(const at::Tensor& piece) {
    auto& states = optimizer->state();
    auto& state = states[state_key<typename std::decay_t<decltype(states)>::key_type>(piece)];
    if (!state) state = std::make_unique<State>();
    return static_cast<State&>(*state);
  }

  // Gives every piece its part of the memory: give(state, parts).
  template <class State, class Give>
  void remember(const std::vector<std::string>& names, const Copies& copies, const Give& give) {
    for (const auto& name : names) memory.push_back({name, copies.zeros(gradients.size(0), gradients.options())});
    std::int64_t begin = share.begin;
    for (const auto& piece : pieces) {
      std::vector<at::Tensor> parts;
      for (const auto& part : memory) parts.push_back(part.values.narrow(0, begin, piece.size(0)));
      give(state_of<State>(piece), parts);
      begin += piece.size(0);
    }
  }

  template <class State>
  void remember_moments(const Copies& copies) {
    remember<State>({"exp_avg", "exp_avg_sq"}, copies, [](State& state, const std::vector<at::Tensor>& parts) {
      state.exp_avg(parts[0]);
      state.exp_avg_sq(parts[1]);
    });
  }

  template <class State>
  void set_steps(std::int64_t steps) {
    for (const auto& piece : pieces) state_of<State>(piece).step(steps);
  }
};

Optimizer::Optimizer(const OptimizerOptions& o, at::Tensor values, at::Tensor gradients, const Copies& copies)
    : impl_(std::make_unique<Impl>()) {
  impl_->options = o;
  impl_->gradients = gradients;
  impl_->share = copies.share(values.size(0));
  const std::int64_t size = piece_size(values);
  for (std::int64_t begin = impl_->share.begin; begin < impl_->share.end; begin += size) {
    const std::int64_t n = std::min(size, impl_->share.end - begin);
    impl_->pieces.push_back(values.narrow(0, begin, n));
    impl_->pieces.back().mutable_grad() = gradients.narrow(0, begin, n);
  }
  const auto& all = impl_->pieces;
  if (o.name == "sgd") {
    impl_->optimizer = std::make_unique<torch::optim::SGD>(
        all, torch::optim::SGDOptions(o.lr).momentum(o.momentum).weight_decay(o.weight_decay));
    using State = torch::optim::SGDParamState;
    if (o.momentum != 0)
      impl_->remember<State>({"momentum_buffer"}, copies, [](State& state, const std::vector<at::Tensor>& parts) {
        state.momentum_buffer(parts[0]);
      });
  } else if (o.name == "adam") {
    impl_->optimizer =
        std::make_unique<torch::optim::Adam>(all, torch::optim::AdamOptions(o.lr).weight_decay(o.weight_decay));
    impl_->remember_moments<torch::optim::AdamParamState>(copies);
  } else if (o.name == "adamw") {
    impl_->optimizer =
        std::make_unique<torch::optim::AdamW>(all, torch::optim::AdamWOptions(o.lr).weight_decay(o.weight_decay));
    impl_->remember_moments<torch::optim::AdamWParamState>(copies);
  } else {
    throw UsageError(concat("--optimizer ", o.name, " is not one of sgd, adam, adamw"));
  }
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

std::vector<OptimizerState> Optimizer::state() { return impl_->memory; }

void Optimizer::set_steps(std::int64_t steps) {
  if (impl_->options.name == "adam") impl_->set_steps<torch::optim::AdamParamState>(steps);
  if (impl_->options.name == "adamw") impl_->set_steps<torch::optim::AdamWParamState>(steps);
}

}  // namespace tessera
