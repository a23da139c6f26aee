// SGD, Adam and AdamW by torch::optim, learning-rate schedules and gradient clipping.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "tessera/runtime/copies.h"

namespace tessera {

struct OptimizerOptions {
  std::string name = "sgd";  ///< sgd, adam, adamw
  double lr = 0.01;
  double momentum = 0.9;  ///< sgd only
  double weight_decay = 0;
  double clip_norm = 0;  ///< 0: gradients are not clipped
  double average = 0;    ///< of the moving average of the weights: its decay; 0: there is none
};

struct LearningRateOptions {
  std::string schedule = "constant";  ///< constant, step, cosine
  std::int64_t warmup_steps = 0;      ///< rises linearly over these, then the schedule begins
  std::int64_t step_every = 1000;     ///< step: multiplied by step_factor each time
  double step_factor = 0.1;
};

/// The learning rate of a step, counted from 0, of a run of total_steps.
double learning_rate(const LearningRateOptions& options, double base, std::int64_t step, std::int64_t total_steps);

/// A part of an optimizer's memory: one number for each value.
struct OptimizerState {
  std::string name;   ///< torch's: "momentum_buffer", "exp_avg", "exp_avg_sq"
  at::Tensor values;  ///< in the order of the values that are optimized
};

/// Works on one long tensor of values and one of gradients. Every rule here is element-wise, so this equals an
/// optimizer over the single parameters; the clipped norm is that of all gradients together.
class Optimizer {
 public:
  /// `copies`: the ranks that hold these values; where they do so in common, step() updates this one's share.
  Optimizer(const OptimizerOptions& options, at::Tensor values, at::Tensor gradients, const Copies& copies = {});
  ~Optimizer();
  Optimizer(Optimizer&&) noexcept;

  bool clips() const;
  /// Scales the gradients down if `norm`, that of all gradients of the network together, is too large.
  void clip(double norm);
  void step(double lr);

  /// What it remembers from step to step, zeros before the first; writing to it changes the next step.
  std::vector<OptimizerState> state();
  /// Says how many steps led to this state; Adam's first ones are corrected by it.
  void set_steps(std::int64_t steps);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera
