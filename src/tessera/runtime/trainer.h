// Training of one rank: batches in, steps of the schedule, parameters out.
#pragma once

#include <memory>
#include <vector>

#include "tessera/data/image_source.h"
#include "tessera/data/loader.h"
#include "tessera/plan/plan.h"
#include "tessera/runtime/executor.h"
#include "tessera/runtime/memory.h"
#include "tessera/runtime/optimizer.h"
#include "tessera/schedule/schedule.h"

namespace tessera {

struct TrainOptions {
  // What is trained.
  std::int64_t steps = 1;  ///< of the whole run, for the learning-rate schedule
  OptimizerOptions optimizer;
  LearningRateOptions learning_rate;
  std::uint64_t seed = 0;
  at::ScalarType dtype = at::kFloat;

  // How fast; none of this changes a result.
  Recompute recompute = Recompute::norm;
  int loader_workers = 1;
};

struct StepReport {
  std::int64_t step = 0;  ///< counted from 0
  std::int64_t epoch = 0;
  double loss = 0;  ///< mean over the whole batch, before the step
  double learning_rate = 0;
  double gradient_norm = 0;  ///< 0 unless gradients are clipped
  double seconds = 0;
  double data_seconds = 0;  ///< of these, waiting for data
};

/// Belongs to one thread, the rank's. The graph must outlive it.
class Trainer {
 public:
  Trainer(const Graph& graph, const Plan& plan, const TrainOptions& options, std::shared_ptr<const ImageSource> images);

  /// One step of the optimizer. Throws NumericError, which names the step, when the loss is not a finite number; the
  /// parameters are then those before the step.
  StepReport step();

  const Parameters& parameters() const { return parameters_; }

 private:
  /// The micro's share of the batch's mean loss.
  double forward(const Batch& batch, int micro);
  void update(StepReport& report);

  const Graph& graph_;
  const Plan plan_;
  const TrainOptions options_;
  const std::vector<Action> actions_;
  Parameters parameters_;
  Executor executor_;
  Optimizer optimizer_;
  Loader loader_;
  std::vector<MicroState> micros_;
  std::int64_t step_ = 0;
};

}  // namespace tessera
