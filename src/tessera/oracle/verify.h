// Runs a plan beside the oracle and compares everything that training produces, number by number.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tessera/data/image_source.h"
#include "tessera/runtime/trainer.h"

namespace tessera {

/// One thing that was compared: the loss, or a parameter's gradient, value or statistic.
struct Difference {
  std::string what;
  std::int64_t step = 0;
  double relative = 0;  ///< ‖a - b‖ / ‖b‖; infinite if either is not finite
};

struct Verification {
  std::vector<Difference> worst;  ///< by kind and name: the step at which it was largest, largest first
  std::int64_t compared = 0;      ///< tensors
  double largest() const { return worst.empty() ? 0 : worst.front().relative; }
};

/// The tolerance that a data type allows over a few steps.
double verify_tolerance(at::ScalarType dtype);

/// Trains `steps` steps on both sides from the same start and the same batches. Runs on the calling thread.
Verification verify_against_autograd(const Graph& graph, const Plan& plan, const TrainOptions& options,
                                     std::shared_ptr<const ImageSource> images);

}  // namespace tessera
