// Matrix products with the sums in registers: what the own convolutions are made of.
#pragma once

#include <cstdint>

#include "tessera/ops/cpu/isa/tables.h"

namespace tessera {

/// Numbers of a are `a_row` and `a_depth` apart, rows of b `b_depth`, rows of c `c_row`.
struct ProductStrides {
  std::int64_t a_row, a_depth, b_depth, c_row;
};
struct ProductExtent {
  std::int64_t height, width, depth;
};

/// A matrix of weights in any order of memory.
struct WeightMatrix {
  std::int64_t rows, columns, row_stride, column_stride;
};

struct ProductKernels {
  std::int64_t lane;  ///< numbers in a vector

  /// c = a · b, or added to c. The width is in whole vectors. The right factor lies in panels of a few vectors of
  /// columns, one behind the other (b_depth means nothing then), or is a plain matrix.
  using Product = void (*)(const float* a, const float* b, float* c, ProductExtent e, ProductStrides s);
  Product multiply_panels, add_panels, multiply, add;

  /// Makes rows [first, first + w.rows) of a right factor of `depth` rows and as many whole vectors as w has columns.
  /// What the last vector has beyond them is left as it is.
  void (*to_panels)(const float* weights, const WeightMatrix& w, float* to, std::int64_t depth, std::int64_t first);
  /// Adds rows that are `apart` numbers apart to the weights.
  void (*add_to_weights)(const float* from, std::int64_t apart, const WeightMatrix& w, float* weights);
};
TESSERA_ISA_TABLE(ProductKernels, product_kernels)

}  // namespace tessera
