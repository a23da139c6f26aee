#include "tessera/runtime/averages.h"

#include <algorithm>

namespace tessera {

Averages::Averages(double decay, const Parameters& parameters, const Copies& copies)
    : decay_(decay),
      parameters_(parameters),
      share_(copies.share(parameters.flat_values().size(0))),
      values_(copies.zeros(parameters.flat_values().size(0), parameters.flat_values().options())),
      statistics_(parameters.flat_statistics().clone()) {
  mine(values_).copy_(mine(parameters.flat_values()));
  copies.settle();
}

void Averages::follow(std::int64_t step) const {
  const auto t = static_cast<double>(step);
  const double weight = 1 - std::min(decay_, (1 + t) / (10 + t));
  mine(values_).lerp_(mine(parameters_.flat_values()), weight);
  statistics_.lerp_(parameters_.flat_statistics(), weight);
}

void Averages::swap() const {
  const auto swapped = [](const at::Tensor& a, const at::Tensor& b) {
    const at::Tensor kept = a.clone();
    a.copy_(b);
    b.copy_(kept);
  };
  swapped(mine(values_), mine(parameters_.flat_values()));
  swapped(statistics_, parameters_.flat_statistics());
}

void Averages::restart() const {
  mine(parameters_.flat_values()).copy_(mine(values_));
  parameters_.flat_statistics().copy_(statistics_);
}

at::Tensor Averages::of(const Parameter& parameter) const {
  if (parameter.trainable) return parameters_.part_like(parameter, values_);
  return parameters_.is_statistic(parameter) ? parameters_.part_like(parameter, statistics_) : at::Tensor();
}

}  // namespace tessera
