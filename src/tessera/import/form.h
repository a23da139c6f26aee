// How the axes of a value (batch, channels, rows, columns) lie in the dimensions of a tensor as PyTorch's code sees it.
//
// A value of the graph has its axes in one order. The code may permute them (channels last), join them (flatten) or
// divide the channels (a shuffle); none of that computes anything, so it is noted here, and the next operation says
// which order it wants.
//
//     [N, C, H, W]     permute(0, 2, 3, 1) ->  [N, H, W, C]
//                      flatten(1)          ->  [N, C·H·W]
//                      view(N, 2, C/2, H, W), transpose(1, 2), flatten(1, 2)  ->  [N, c·g, H, W], c and g swapped
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/graph/operation.h"

namespace tessera {

/// How many samples a batch has while shapes are followed; networks do not depend on it.
inline constexpr std::int64_t followed_batch = 2;

/// A piece of an axis; axes of size 1 have none.
struct Piece {
  enum class Of { batch, channels, rows, columns };
  Of of = Of::batch;
  std::int64_t size = 1;
  int number = 0;  ///< among the pieces of its axis, the outermost first
  friend bool operator==(const Piece&, const Piece&) = default;
};

/// A dimension is a product of pieces, the slowest first; without one its size is 1.
using Dimension = std::vector<Piece>;

struct Form {
  std::vector<Dimension> dims;

  /// [N, C, H, W]
  static Form planes(const Shape& shape);
  std::int64_t size(std::size_t d) const;
  std::vector<std::int64_t> sizes() const;
  std::size_t rank() const { return dims.size(); }
  /// Counts from the end if negative; nothing if there is no such dimension.
  std::optional<std::size_t> dim(std::int64_t d) const;
  friend bool operator==(const Form&, const Form&) = default;

  /// Nothing where pieces would have to be cut that cannot be.
  std::optional<Form> viewed(const std::vector<std::int64_t>& sizes) const;
  Form permuted(const std::vector<std::size_t>& order) const;
  Form flattened(std::size_t first, std::size_t last) const;
  /// With all pieces of an axis replaced by one of this size.
  Form with_axis(Piece::Of axis, std::int64_t size) const;

  /// The only axis that has pieces in a dimension, nothing if there are several or none.
  std::optional<Piece::Of> axis_of(std::size_t d) const;
  /// Where the whole axis lies, in the order of its pieces; nothing if it does not lie in one dimension by itself.
  std::optional<std::size_t> place_of(Piece::Of axis) const;
  /// Whether dimension `d` holds exactly these axes, whole and in this order (axes of size 1 do not count).
  bool holds(std::size_t d, const std::vector<Piece::Of>& axes) const;
  bool whole(Piece::Of axis) const;  ///< not cut into pieces

 private:
  void tidy();
};

}  // namespace tessera
