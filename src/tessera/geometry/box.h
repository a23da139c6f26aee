// Integer arithmetic of intervals and boxes. Half-open everywhere.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <ostream>
#include <vector>

namespace tessera {

/// Half-open [begin, end). Empty when end <= begin.
struct Interval {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  std::int64_t size() const { return std::max<std::int64_t>(0, end - begin); }
  bool empty() const { return end <= begin; }
  bool contains(std::int64_t i) const { return begin <= i && i < end; }
  bool contains(const Interval& o) const { return o.empty() || (begin <= o.begin && o.end <= end); }
  Interval shifted(std::int64_t by) const { return {begin + by, end + by}; }
  friend Interval intersect(const Interval& a, const Interval& b) {
    return {std::max(a.begin, b.begin), std::max(std::max(a.begin, b.begin), std::min(a.end, b.end))};
  }
  /// The smallest interval that holds both; an empty one adds nothing.
  friend Interval hull(const Interval& a, const Interval& b) {
    if (a.empty()) return b;
    if (b.empty()) return a;
    return {std::min(a.begin, b.begin), std::max(a.end, b.end)};
  }
  friend bool operator==(const Interval&, const Interval&) = default;
  friend std::ostream& operator<<(std::ostream& out, const Interval& i) {
    return out << '[' << i.begin << ',' << i.end << ')';
  }
};

/// The axes that a value can be divided along. Channels are never divided.
enum class Axis : int { batch = 0, depth = 1, height = 2, width = 3 };
inline constexpr std::array<Axis, 4> all_axes{Axis::batch, Axis::depth, Axis::height, Axis::width};

/// A half-open interval on each of batch, depth, height and width. Depth is [0,1) for images.
struct Box {
  std::array<Interval, 4> sides{};

  Interval& operator[](Axis axis) { return sides[static_cast<std::size_t>(axis)]; }
  const Interval& operator[](Axis axis) const { return sides[static_cast<std::size_t>(axis)]; }
  const Interval& batch() const { return (*this)[Axis::batch]; }
  const Interval& height() const { return (*this)[Axis::height]; }
  const Interval& width() const { return (*this)[Axis::width]; }

  /// Positions in the box, over all axes.
  std::int64_t volume() const {
    std::int64_t v = 1;
    for (const auto& side : sides) v *= side.size();
    return v;
  }
  bool empty() const {
    return std::any_of(sides.begin(), sides.end(), [](const Interval& s) { return s.empty(); });
  }
  bool contains(const Box& o) const {
    if (o.empty()) return true;
    for (std::size_t i = 0; i < 4; ++i)
      if (!sides[i].contains(o.sides[i])) return false;
    return true;
  }
  friend Box intersect(const Box& a, const Box& b) {
    Box out;
    for (std::size_t i = 0; i < 4; ++i) out.sides[i] = intersect(a.sides[i], b.sides[i]);
    return out;
  }
  friend Box hull(const Box& a, const Box& b) {
    if (a.empty()) return b;
    if (b.empty()) return a;
    Box out;
    for (std::size_t i = 0; i < 4; ++i) out.sides[i] = hull(a.sides[i], b.sides[i]);
    return out;
  }
  friend bool operator==(const Box&, const Box&) = default;
  friend std::ostream& operator<<(std::ostream& out, const Box& b) {
    return out << b.sides[0] << '*' << b.sides[1] << '*' << b.sides[2] << '*' << b.sides[3];
  }
};

/// The part of `whole` outside `hole`, as boxes that do not overlap; all of it when the two do not meet.
std::vector<Box> difference(const Box& whole, const Box& hole);

/// A box of images: batch × height × width.
inline Box image_box(Interval batch, Interval height, Interval width) {
  return Box{{batch, Interval{0, 1}, height, width}};
}

/// Cuts an interval into `parts` pieces whose sizes differ by at most one, the larger ones first.
std::vector<Interval> split_evenly(Interval whole, std::int64_t parts);

/// Rows × columns of tiles.
struct Grid {
  std::int64_t rows = 1;
  std::int64_t columns = 1;
  std::int64_t tiles() const { return rows * columns; }
  friend bool operator==(const Grid&, const Grid&) = default;
  friend std::ostream& operator<<(std::ostream& out, const Grid& g) { return out << g.rows << 'x' << g.columns; }
};

/// The boxes of one value, one per rank: boxes[i] belongs to the i-th rank of a group. Boxes of a partition do not
/// overlap; a rank may own an empty box.
struct Partition {
  std::vector<Box> boxes;
  friend bool operator==(const Partition&, const Partition&) = default;
};

/// The tiles of an even grid over `whole`, row by row.
Partition grid_partition(const Box& whole, const Grid& grid);

}  // namespace tessera
