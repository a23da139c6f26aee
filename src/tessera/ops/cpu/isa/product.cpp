#include "tessera/ops/cpu/isa/product.h"

#include "tessera/ops/cpu/isa/panels.h"

namespace tessera::TESSERA_ISA {
namespace {

template <int rows, int vectors, bool add>
TESSERA_INLINE void product_of_registers(const float* a, const float* b, float* c, std::int64_t depth,
                                         const ProductStrides& s) {
  V sum[rows][vectors];
#pragma GCC unroll 16
  for (int i = 0; i < rows; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < vectors; ++j) sum[i][j] = add ? load<V>(c + i * s.c_row + j * lane) : V{};
  for (std::int64_t k = 0; k < depth; ++k) {
    V right[vectors];
#pragma GCC unroll 4
    for (int j = 0; j < vectors; ++j) right[j] = load<V>(b + k * s.b_depth + j * lane);
#pragma GCC unroll 16
    for (int i = 0; i < rows; ++i)
#pragma GCC unroll 4
      for (int j = 0; j < vectors; ++j) sum[i][j] += a[i * s.a_row + k * s.a_depth] * right[j];
  }
#pragma GCC unroll 16
  for (int i = 0; i < rows; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < vectors; ++j) store(c + i * s.c_row + j * lane, sum[i][j]);
}

template <int rows, int vectors, bool add>
TESSERA_INLINE void product_of_columns(const float* a, const float* b, float* c, std::int64_t height,
                                       std::int64_t depth, const ProductStrides& s) {
  std::int64_t i = 0;
  for (; i + rows <= height; i += rows)
    product_of_registers<rows, vectors, add>(a + i * s.a_row, b, c + i * s.c_row, depth, s);
  if constexpr (rows > 1) {
    if (i < height)
      product_of_columns<rows / 2, vectors, add>(a + i * s.a_row, b, c + i * s.c_row, height - i, depth, s);
  }
}

// `apart`: each panel is a matrix of its own, one behind the other, so that it is read in the order of memory.
enum class Panels { side_by_side, apart };

template <Panels panels, bool add>
void product(const float* a, const float* b, float* c, ProductExtent e, ProductStrides s) {
  for (std::int64_t j = 0; j < e.width;) {
    const Panel panel = panel_of(j, e.width);
    const float* const right = panels == Panels::apart ? b + j * e.depth : b + j;
    if (panels == Panels::apart) s.b_depth = panel.width;
    if (panel.width == widest * lane)
      product_of_columns<rows_of_widest, widest, add>(a, right, c + j, e.height, e.depth, s);
    else if (panel.width == 2 * lane)
      product_of_columns<rows_of_two, 2, add>(a, right, c + j, e.height, e.depth, s);
    else
      product_of_columns<rows_of_one, 1, add>(a, right, c + j, e.height, e.depth, s);
    j += panel.width;
  }
}

TESSERA_INLINE Square square_at(const WeightMatrix& w, std::int64_t row, std::int64_t column) {
  return {lesser(lane, w.rows - row), lesser(lane, w.columns - column), w.row_stride, w.column_stride};
}

void to_panels(const float* weights, const WeightMatrix& w, float* to, std::int64_t depth, std::int64_t first) {
  const std::int64_t whole = (w.columns + lane - 1) / lane * lane;
  for (std::int64_t column = 0; column < whole; column += lane) {
    const Panel panel = panel_of(column, whole);
    for (std::int64_t row = 0; row < w.rows; row += lane)
      load_square(weights + row * w.row_stride + column * w.column_stride, square_at(w, row, column),
                  to + panel.begin * depth + (first + row) * panel.width + (column - panel.begin), panel.width);
  }
}

void add_to_weights(const float* from, std::int64_t apart, const WeightMatrix& w, float* weights) {
  for (std::int64_t column = 0; column < w.columns; column += lane)
    for (std::int64_t row = 0; row < w.rows; row += lane)
      add_square(weights + row * w.row_stride + column * w.column_stride, square_at(w, row, column),
                 from + row * apart + column, apart);
}

}  // namespace

const ProductKernels product_kernels{lane,
                                     product<Panels::apart, false>,
                                     product<Panels::apart, true>,
                                     product<Panels::side_by_side, false>,
                                     product<Panels::side_by_side, true>,
                                     to_panels,
                                     add_to_weights};

}  // namespace tessera::TESSERA_ISA
