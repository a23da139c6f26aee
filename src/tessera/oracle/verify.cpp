#include "tessera/oracle/verify.h"

#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tessera/oracle/autograd.h"

namespace tessera {
namespace {

// ‖ours - theirs‖ / ‖theirs‖, or over `floor` if that is larger.
double relative(const at::Tensor& ours, const at::Tensor& theirs, double floor = 0) {
  const at::Tensor a = ours.to(at::kDouble), b = theirs.to(at::kDouble);
  const double difference = (a - b).norm().item<double>(), scale = b.norm().item<double>();
  if (!std::isfinite(difference) || !std::isfinite(scale)) return std::numeric_limits<double>::infinity();
  const double divisor = std::max(scale, floor);
  return divisor > 0 ? difference / divisor : difference;
}

// Some gradients are zero but for rounding (that of a bias before a norm, say). What is far below the largest gradient
// is compared on this share of it: still near the last digits of what it was summed from.
double gradient_floor(const Parameters& parameters, const AutogradOracle& oracle, at::ScalarType dtype) {
  double largest = 0;
  for (const auto& p : parameters.all())
    if (p.gradient.defined()) largest = std::max(largest, oracle.gradient(p.name).norm().item<double>());
  return largest * (dtype == at::kDouble ? 1e-4 : 1e-2);
}

class Collector {
 public:
  void add(const std::string& what, std::int64_t step, double value) {
    ++result_.compared;
    const auto found =
        std::find_if(result_.worst.begin(), result_.worst.end(), [&](const Difference& d) { return d.what == what; });
    if (found == result_.worst.end())
      result_.worst.push_back({what, step, value});
    else if (value > found->relative)
      *found = {what, step, value};
  }
  Verification finish() {
    std::stable_sort(result_.worst.begin(), result_.worst.end(),
                     [](const Difference& a, const Difference& b) { return a.relative > b.relative; });
    return std::move(result_);
  }

 private:
  Verification result_;
};

}  // namespace

double verify_tolerance(at::ScalarType dtype) { return dtype == at::kDouble ? 1e-10 : 1e-4; }

Verification verify_against_autograd(const Graph& graph, const Plan& plan, const TrainOptions& options,
                                     std::shared_ptr<const ImageSource> images) {
  Trainer trainer(graph, plan, options, images);
  AutogradOracle oracle(graph, trainer.parameters(), options);
  Loader batches(images, {.batch_size = plan.batch_size, .seed = options.seed, .dtype = options.dtype});
  Collector collector;
  for (std::int64_t step = 0; step < options.steps; ++step) {
    const Batch batch = batches.next();
    const double expected = oracle.step(batch.images, batch.labels, plan.micros);
    const double loss = trainer.step().loss;
    collector.add("loss", step, std::abs(loss - expected) / std::max(std::abs(expected), 1e-300));
    const double floor = gradient_floor(trainer.parameters(), oracle, options.dtype);
    for (const auto& p : trainer.parameters().all()) {
      if (p.gradient.defined())
        collector.add("gradient " + p.name, step, relative(p.gradient, oracle.gradient(p.name), floor));
      collector.add((p.gradient.defined() ? "parameter " : "statistic ") + p.name, step,
                    relative(p.value, oracle.value(p.name)));
    }
  }
  return collector.finish();
}

}  // namespace tessera
