// The runs that plans are compared with.
#pragma once

#include <memory>
#include <string>

#include "tessera/data/image_source.h"
#include "tessera/graph/graph.h"
#include "tessera/oracle/foreign_module.h"
#include "tessera/plan/plan.h"
#include "tessera/runtime/trainer.h"

namespace tessera {

/// Training that is known to be right, of the same batches from the same start.
class ReferenceRun {
 public:
  virtual ~ReferenceRun() = default;
  /// The loss, before the step.
  virtual double step() = 0;
  virtual at::Tensor gradient(const std::string& name) const = 0;
  virtual at::Tensor value(const std::string& name) const = 0;
};

/// The last bit of a number of this type, relative to it.
double last_bit(at::ScalarType dtype);

/// Torch's autograd for a plan of one rank, sequential training for any other. With a `foreign` module one rank is
/// compared with that, trained by torch's autograd, and not with the graph.
///
/// `nudge` above 0: every number of the images, every first value of a trainable parameter and every gradient is
/// changed in its last bit, up or down by a coin that `nudge` throws. What this run then differs by from the plain one
/// is what rounding does to this network: each of its sums is rounded about as much as that. A gradient may be zero but
/// for rounding (that of a bias before a norm is one), a sum of terms that are far from zero; so its last bit is that
/// of the largest gradient: no gradient is known any better.
std::unique_ptr<ReferenceRun> make_reference_run(const Graph& graph, const Plan& plan, const TrainOptions& options,
                                                 std::shared_ptr<const ImageSource> images, int nudge = 0,
                                                 const ForeignModule* foreign = nullptr);

}  // namespace tessera
