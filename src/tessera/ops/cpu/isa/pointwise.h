// The loops behind pointwise_loops.h and pointwise_any.h.
#pragma once

#include "tessera/graph/activations.h"
#include "tessera/ops/cpu/isa/pointwise_arithmetic.h"
#include "tessera/ops/cpu/isa/tables.h"

namespace tessera {

/// One function per kind of loop, found by the loop's type: runs it over n adjacent numbers, which start at the
/// beginning of a period.
template <class Loop>
struct RunOf {
  void (*function)(const Loop& loop, std::int64_t n, std::int64_t period);
};
template <class... Loops>
struct RunTable : RunOf<Loops>... {
  template <class Loop>
  void run(const Loop& loop, std::int64_t n, std::int64_t period) const {
    static_cast<const RunOf<Loop>&>(*this).function(loop, n, period);
  }
};

#define TESSERA_SUMS_LOOPS(gradients, mask)                           \
  loops::SumsLoop<T, gradients, loops::MaskKind::mask, 0, true>,      \
      loops::SumsLoop<T, gradients, loops::MaskKind::mask, 1, true>,  \
      loops::SumsLoop<T, gradients, loops::MaskKind::mask, 1, false>, \
      loops::SumsLoop<T, gradients, loops::MaskKind::mask, 2, true>,  \
      loops::SumsLoop<T, gradients, loops::MaskKind::mask, 2, false>
template <class T>
using PointwiseRuns =
    RunTable<loops::MomentsLoop<T>, loops::AffineLoop<T, 1>, loops::AffineLoop<T, 2>,
             loops::GradientLoop<T, false, false>, loops::GradientLoop<T, false, true>,
             loops::GradientLoop<T, true, false>, loops::GradientLoop<T, true, true>, TESSERA_SUMS_LOOPS(1, none),
             TESSERA_SUMS_LOOPS(1, output), TESSERA_SUMS_LOOPS(1, input), TESSERA_SUMS_LOOPS(2, none),
             TESSERA_SUMS_LOOPS(2, output), TESSERA_SUMS_LOOPS(2, input)>;
#undef TESSERA_SUMS_LOOPS

template <class T>
struct PointwiseLoops {
  PointwiseRuns<T> runs;
  void (*activate)(const Activation& a, T* y, std::int64_t n);
  /// g times the derivative, at x or by the value x.
  void (*derive)(const Activation& a, bool by_value, const T* x, T* g, std::int64_t n);
  void (*multiply)(const T* a, const T* b, T* out, std::int64_t n);
  void (*add)(const T* a, const T* b, T* out, std::int64_t n);
};

struct PointwiseKernels {
  std::int64_t vector_bytes;
  PointwiseLoops<float> of_float;
  PointwiseLoops<double> of_double;
};
TESSERA_ISA_TABLE(PointwiseKernels, pointwise_kernels)

template <class T>
const PointwiseLoops<T>& pointwise_loops();
template <>
inline const PointwiseLoops<float>& pointwise_loops<float>() {
  return pointwise_kernels().of_float;
}
template <>
inline const PointwiseLoops<double>& pointwise_loops<double>() {
  return pointwise_kernels().of_double;
}

}  // namespace tessera
