// Runs a plan beside a run that is known to be right, and compares everything that training produces, number by number.
#pragma once

#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "tessera/comm/communicator.h"
#include "tessera/data/image_source.h"
#include "tessera/oracle/foreign_module.h"
#include "tessera/runtime/trainer.h"

namespace tessera {

/// When two numbers are the same. A tensor may differ by the tolerance; where it differs by more, the reference is
/// trained again with its images and first parameters changed in their last bit, and the tensor may differ by `factor`
/// times what that moved.
struct VerifyOptions {
  double tolerance = 0;  ///< relative; 0: what the data type allows
  double factor = 100;
  int trials = 12;  ///< how often the reference is trained again at most: one random change may move a number by chance
                    ///< very little
  std::shared_ptr<const ForeignModule> foreign = nullptr;  ///< one rank is compared with this, not with its own graph
};

/// One thing that was compared: the loss, or a parameter's gradient, value or statistic.
struct Difference {
  std::string what;
  std::int64_t step = 0;
  double relative = 0;  ///< ‖a - b‖ / ‖b‖, the largest over the ranks that hold it; infinite if either is not finite;
                        ///< of a running mean over the deviation, if that is larger than ‖b‖
  double rounding = 0;  ///< the same of the reference and itself with the last bits changed; 0: was not looked at
  double allowed = 0;   ///< what `relative` may be

  bool equal() const { return relative <= allowed; }
  /// Rounding moves it so much that an error of a tenth would not show.
  bool hidden() const { return allowed > 0.1; }
};

struct Verification {
  std::vector<Difference> worst;  ///< by kind and name: the step that came nearest to, or went farthest beyond, what is
                                  ///< allowed; the farthest first
  std::int64_t compared = 0;      ///< tensors, each on all ranks that hold it
  std::int64_t beyond_tolerance = 0;  ///< of `worst`: only rounding, or an error, explains them
  std::int64_t hidden = 0;            ///< of `worst`

  /// The largest difference, explained by rounding or not.
  double largest() const;
  /// All tensors are equal, and not because rounding hides what they are.
  bool equal() const { return !worst.empty() && worst.front().equal() && !rounding_hides_all(); }
  /// Nothing follows from the comparison: most of the tensors would be called equal whatever they were.
  bool rounding_hides_all() const { return 2 * hidden > static_cast<std::int64_t>(worst.size()); }
};

/// The tolerance that a data type allows over a few steps.
double verify_tolerance(at::ScalarType dtype);

/// Trains `steps` steps on both sides from the same start and the same batches, on the calling thread. A plan of one
/// rank is compared with torch's autograd (`world` may be null), any other with sequential training, which rank 0 does
/// beside its own part. Collective; every rank gets the same answer.
Verification verify(const Graph& graph, const Plan& plan, const TrainOptions& options,
                    const std::shared_ptr<const ImageSource>& images, Communicator* world = nullptr,
                    VerifyOptions rules = {});

}  // namespace tessera
