// The moving average of a run's weights and running statistics (--ema): often a better network than the last step's.
#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/runtime/parameters.h"

namespace tessera {

/// Of the parameters of a stage, on one of the ranks that hold them. Every rule here is element-wise, so any plan has
/// the averages of one device.
class Averages {
 public:
  /// Begins with the values as they are. Collective over the copies; both must outlive it.
  Averages(double decay, const Parameters& parameters, const Copies& copies);

  /// After step `step`, counted from 0: average += (1 - d)·(value - average). The first steps count for more, so that
  /// a short run is not an average of its beginning: d is the decay or (1 + step) / (10 + step), whichever is less.
  void follow(std::int64_t step) const;
  /// The values and their averages change places. Others may look at them when the copies have settled.
  void swap() const;
  /// The values become what the averages are.
  void restart() const;

  /// Of a parameter, shaped like its value; undefined for counters and what is fixed, which have none.
  at::Tensor of(const Parameter& parameter) const;

 private:
  at::Tensor mine(const at::Tensor& values) const { return values.narrow(0, share_.begin, share_.size()); }

  const double decay_;
  const Parameters& parameters_;
  const Interval share_;            // of the values, what this copy writes
  at::Tensor values_, statistics_;  // like those of the parameters
};

}  // namespace tessera
