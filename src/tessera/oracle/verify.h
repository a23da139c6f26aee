// Runs a plan beside a run that is known to be right, and compares everything that training produces, number by number.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tessera/comm/communicator.h"
#include "tessera/data/image_source.h"
#include "tessera/runtime/trainer.h"

namespace tessera {

/// One thing that was compared: the loss, or a parameter's gradient, value or statistic.
struct Difference {
  std::string what;
  std::int64_t step = 0;
  double relative = 0;  ///< ‖a - b‖ / ‖b‖, the largest over the ranks that hold it; infinite if either is not finite
};

struct Verification {
  std::vector<Difference> worst;  ///< by kind and name: the step at which it was largest, largest first
  std::int64_t compared = 0;      ///< tensors, each on all ranks that hold it
  double largest() const { return worst.empty() ? 0 : worst.front().relative; }
};

/// The tolerance that a data type allows over a few steps.
double verify_tolerance(at::ScalarType dtype);

/// Trains `steps` steps on both sides from the same start and the same batches, on the calling thread. A plan of one
/// rank is compared with torch's autograd (`world` may be null), any other with sequential training, which rank 0 does
/// beside its own part. Collective; every rank gets the same answer.
Verification verify(const Graph& graph, const Plan& plan, const TrainOptions& options,
                    const std::shared_ptr<const ImageSource>& images, Communicator* world = nullptr);

}  // namespace tessera
