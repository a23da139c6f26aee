#include "tessera/ops/reach.h"

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera {

Reach reach(const Window& window, const Interval& out, const Interval& have, std::int64_t image) {
  const Interval need = window.input_of(out);
  // A slab that reaches outside the image holds the padding itself.
  const Interval inside = have.contains(need) ? need : intersect(need, Interval{0, image});
  // Outputs that see nothing but padding: no row of the slab is read.
  if (inside.empty()) {
    const std::int64_t nowhere = std::clamp(inside.begin, have.begin, have.end);
    return {{nowhere, nowhere}, {nowhere, nowhere}, need.size(), 0};
  }
  ensure(have.contains(inside), "a convolution needs ", inside, " but has ", have);
  const std::int64_t before = inside.begin - need.begin;
  const std::int64_t after = std::max<std::int64_t>(0, need.end - inside.end);
  // Rows that a stride leaves over at the end do not change the output: taking them in avoids a copy of the slab.
  Interval view = inside;
  view.end = std::min(have.end, inside.end + window.stride - 1 - after);
  view.end = std::max(view.end, inside.end);
  return {view, inside, before, after};
}

}  // namespace tessera
