// How a window meets a slab along one axis.
#pragma once

#include "tessera/geometry/window.h"

namespace tessera {

struct Reach {
  Interval view;                       ///< the part of the slab that a library's convolution is given
  Interval seen;                       ///< the part of that which it looks at
  std::int64_t before = 0, after = 0;  ///< padding around it
};

/// For outputs `out`, where the slab has `have` of a value with `image` rows (or columns).
Reach reach(const Window& window, const Interval& out, const Interval& have, std::int64_t image);

}  // namespace tessera
