#include "tessera/geometry/box.h"

#include "tessera/base/error.h"

namespace tessera {

std::vector<Interval> split_evenly(Interval whole, std::int64_t parts) {
  ensure(parts > 0, "an interval cannot be cut into ", parts, " parts");
  const std::int64_t small = whole.size() / parts, larger = whole.size() % parts;
  std::vector<Interval> out;
  std::int64_t at = whole.begin;
  for (std::int64_t i = 0; i < parts; ++i) {
    const std::int64_t size = small + (i < larger ? 1 : 0);
    out.push_back({at, at + size});
    at += size;
  }
  return out;
}

std::vector<Box> difference(const Box& whole, const Box& hole) {
  if (whole.empty()) return {};
  if (intersect(whole, hole).empty()) return {whole};
  std::vector<Box> out;
  Box rest = whole;
  // One axis after the other: what lies before and behind the hole goes, the slice that holds it stays.
  for (const Axis axis : all_axes) {
    for (const Interval& side :
         {Interval{rest[axis].begin, hole[axis].begin}, Interval{hole[axis].end, rest[axis].end}})
      if (!side.empty()) {
        out.push_back(rest);
        out.back()[axis] = side;
      }
    rest[axis] = intersect(rest[axis], hole[axis]);
  }
  return out;
}

Partition grid_partition(const Box& whole, const Grid& grid) {
  Partition out;
  for (const auto& rows : split_evenly(whole.height(), grid.rows))
    for (const auto& columns : split_evenly(whole.width(), grid.columns)) {
      Box tile = whole;
      tile[Axis::height] = rows;
      tile[Axis::width] = columns;
      out.boxes.push_back(tile);
    }
  return out;
}

}  // namespace tessera
