#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "tessera/graph/graph.h"

namespace tessera {

/// Numbers and intervals by chance, the same at every run.
class Draw {
 public:
  explicit Draw(unsigned seed) : random_(seed) {}
  std::int64_t operator()(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random_);
  }
  Interval inside(std::int64_t size) {
    const std::int64_t a = (*this)(0, size), b = (*this)(0, size);
    return {std::min(a, b), std::max(a, b)};
  }
  std::vector<Interval> pieces(std::int64_t size, std::int64_t count) {
    std::vector<std::int64_t> cuts{0, size};
    for (std::int64_t i = 1; i < count; ++i) cuts.push_back((*this)(0, size));
    std::sort(cuts.begin(), cuts.end());
    std::vector<Interval> out;
    for (std::size_t i = 0; i + 1 < cuts.size(); ++i) out.push_back({cuts[i], cuts[i + 1]});
    return out;
  }
  /// Tiles of an uneven grid, some of them empty, with the batch in shares as well.
  std::vector<Box> partition(const Shape& shape, std::int64_t samples) {
    const auto rows = pieces(shape.height, (*this)(1, 4)), columns = pieces(shape.width, (*this)(1, 4));
    std::vector<Box> out;
    for (const Interval& share : pieces(samples, (*this)(1, 3)))
      for (const Interval& r : rows)
        for (const Interval& c : columns) out.push_back(image_box(share, r, c));
    return out;
  }

 private:
  std::mt19937 random_;
};

}  // namespace tessera
