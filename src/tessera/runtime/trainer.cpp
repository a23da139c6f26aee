#include "tessera/runtime/trainer.h"

#include <ATen/core/LegacyTypeDispatch.h>

#include <chrono>
#include <cmath>

#include "tessera/base/error.h"

namespace tessera {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

Trainer::Trainer(const Graph& graph, const Plan& plan, const TrainOptions& options,
                 std::shared_ptr<const ImageSource> images)
    : graph_(graph),
      plan_(plan),
      options_(options),
      actions_(schedule_for(plan, /*rank=*/0)),
      parameters_(graph, options.dtype, options.seed),
      executor_(graph, parameters_, options.recompute),
      optimizer_(options.optimizer, parameters_.flat_values(), parameters_.flat_gradients()),
      loader_(std::move(images), {.batch_size = plan.batch_size,
                                  .seed = options.seed,
                                  .dtype = options.dtype,
                                  .workers = options.loader_workers}),
      micros_(static_cast<std::size_t>(plan.micros)) {}

StepReport Trainer::step() {
  const auto start = std::chrono::steady_clock::now();
  // Kernels are called below autograd: it has nothing to record here.
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const double waited = loader_.waited_seconds();
  const Batch batch = loader_.next();
  StepReport report{.step = step_, .epoch = batch.epoch, .data_seconds = loader_.waited_seconds() - waited};

  parameters_.flat_gradients().zero_();
  for (const Action& action : actions_) switch (action.kind) {
      case Action::Kind::forward:
        report.loss += forward(batch, action.micro);
        break;
      case Action::Kind::backward:
        executor_.backward(micros_[static_cast<std::size_t>(action.micro)]);
        break;
      case Action::Kind::step:
        update(report);
        break;
    }
  ++step_;
  report.seconds = seconds_since(start);
  return report;
}

double Trainer::forward(const Batch& batch, int micro) {
  const std::int64_t size = plan_.micro_size(), first = micro * size;
  const Slab images{batch.images, graph_.nodes()[0].shape.box({0, plan_.batch_size})};
  Box box = images.box;
  box[Axis::batch] = {first, first + size};
  const PassInfo pass{options_.seed, step_, plan_.batch_size, batch.labels.narrow(0, first, size)};
  const double losses = executor_.forward(micros_[static_cast<std::size_t>(micro)], narrowed(images, box), pass);
  return losses / static_cast<double>(plan_.batch_size);
}

void Trainer::update(StepReport& report) {
  if (!std::isfinite(report.loss))
    throw NumericError(concat("the loss is ", report.loss, " at step ", step_ + 1,
                              "; try a smaller --lr, or --warmup-steps or --clip-norm"));
  report.learning_rate = learning_rate(options_.learning_rate, options_.optimizer.lr, step_, options_.steps);
  report.gradient_norm = optimizer_.clip();
  optimizer_.step(report.learning_rate);
}

}  // namespace tessera
