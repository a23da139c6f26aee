#include "tessera/ops/cpu/isa/pointwise.h"

#include "tessera/ops/cpu/isa/vectors.h"

namespace tessera::TESSERA_ISA {
namespace {

using lanes::unroll;

template <class X, int count, class Loop>
TESSERA_INLINE void run_down(const Loop& loop, std::int64_t lane, std::int64_t periods, std::int64_t period) {
  constexpr std::int64_t width = static_cast<std::int64_t>(sizeof(X) / sizeof(typename Loop::Number));
  typename Loop::template Lane<X> registers[count];
#pragma GCC unroll 4
  for (int i = 0; i < count; ++i) loop.begin(registers[i], lane + i * width);
  for (std::int64_t p = 0; p < periods; ++p)
#pragma GCC unroll 4
    for (int i = 0; i < count; ++i) loop.step(registers[i], p * period + lane + i * width);
#pragma GCC unroll 4
  for (int i = 0; i < count; ++i) loop.end(registers[i], lane + i * width);
}

template <class Loop>
void run(const Loop& loop, std::int64_t n, std::int64_t period) {
  using T = typename Loop::Number;
  using V = Vector<T>;
  constexpr std::int64_t width = vector_length<T>;
  const std::int64_t periods = n / period, rest = n % period;
  // A period of a few vectors runs down the whole block from registers. A longer one is taken in the order of memory,
  // which the hardware prefetches; its coefficients then come from the first cache.
  const std::int64_t together = period <= unroll * width && periods > 0 ? periods : 1;
  for (std::int64_t p = 0; p < periods; p += together) {
    const Loop part = loop.shifted(p * period);
    const std::int64_t down = lesser(together, periods - p);
    std::int64_t lane = 0;
    for (; lane + unroll * width <= period; lane += unroll * width) run_down<V, unroll>(part, lane, down, period);
    for (; lane < period; lane += width) run_down<V, 1>(part, lane, down, period);
  }
  // What is left of a row that does not end with a period.
  const std::int64_t base = periods * period;
  std::int64_t lane = 0;
  const Loop last = loop.shifted(base);
  for (; lane + width <= rest; lane += width) run_down<V, 1>(last, lane, 1, period);
  for (; lane < rest; ++lane) run_down<T, 1>(last, lane, 1, period);
}

// body(X{}, i) for the numbers from i on, as vectors as far as they go.
template <class T, class Body>
TESSERA_INLINE void each_vector(std::int64_t n, const Body& body) {
  std::int64_t i = 0;
  for (; i + vector_length<T> <= n; i += vector_length<T>) body(Vector<T>{}, i);
  for (; i < n; ++i) body(T{}, i);
}

template <class T>
void activate(const Activation& a, T* y, std::int64_t n) {
  const T p = static_cast<T>(a.parameter);
  activation::dispatch(a.kind, [&](auto which) {
    each_vector<T>(n, [&](auto kind, std::int64_t i) TESSERA_INLINE_LAMBDA {
      using X = decltype(kind);
      store(y + i, decltype(which)::value(load<X>(y + i), X{} + p));
    });
  });
}

template <class T, bool by_value>
void derive(const Activation& a, const T* x, T* g, std::int64_t n) {
  const T p = static_cast<T>(a.parameter);
  activation::dispatch(a.kind, [&](auto which) {
    using A = decltype(which);
    each_vector<T>(n, [&](auto kind, std::int64_t i) TESSERA_INLINE_LAMBDA {
      using X = decltype(kind);
      const X slope = by_value ? A::by_value(load<X>(x + i), X{} + p) : A::derivative(load<X>(x + i), X{} + p);
      store(g + i, load<X>(g + i) * slope);
    });
  });
}
template <class T>
void derive_either(const Activation& a, bool by_value, const T* x, T* g, std::int64_t n) {
  by_value ? derive<T, true>(a, x, g, n) : derive<T, false>(a, x, g, n);
}

template <class T>
void multiply(const T* a, const T* b, T* out, std::int64_t n) {
  each_vector<T>(n, [&](auto kind, std::int64_t i) TESSERA_INLINE_LAMBDA {
    using X = decltype(kind);
    store(out + i, load<X>(a + i) * load<X>(b + i));
  });
}
template <class T>
void add(const T* a, const T* b, T* out, std::int64_t n) {
  each_vector<T>(n, [&](auto kind, std::int64_t i) TESSERA_INLINE_LAMBDA {
    using X = decltype(kind);
    store(out + i, load<X>(a + i) + load<X>(b + i));
  });
}

template <class... Loops>
constexpr RunTable<Loops...> all_runs(const RunTable<Loops...>*) {
  return {RunOf<Loops>{run<Loops>}...};
}
template <class T>
constexpr PointwiseLoops<T> all_loops{all_runs(static_cast<const PointwiseRuns<T>*>(nullptr)), activate<T>,
                                      derive_either<T>, multiply<T>, add<T>};

}  // namespace

const PointwiseKernels pointwise_kernels{TESSERA_VECTOR_BYTES, all_loops<float>, all_loops<double>};

}  // namespace tessera::TESSERA_ISA
