#include "tessera/base/random.h"

#include <cmath>
#include <numbers>

namespace tessera {

double RandomStream::normal(std::uint64_t index) const {
  const auto r = philox(seed_, index, stream_);
  const double u = (static_cast<double>((std::uint64_t{r[0]} << 32 | r[1]) >> 11) + 1.0) * 0x1.0p-53;  // (0, 1]
  const double v = static_cast<double>((std::uint64_t{r[2]} << 32 | r[3]) >> 11) * 0x1.0p-53;
  return std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * v);
}

}  // namespace tessera
