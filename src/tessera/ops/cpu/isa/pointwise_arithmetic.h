// The arithmetic of the point-wise passes, once for vectors and for single numbers: loops in the sense of lanes.h. The
// structs are the same for all instruction sets; what makes them step is inlined.
#pragma once

#include "tessera/ops/cpu/lanes.h"

namespace tessera::loops {

using lanes::load;
using lanes::store;

// Coefficients of an affine term, repeated over a period, and where its data is.
template <class T>
struct Term {
  const T* x = nullptr;
  const T *mean = nullptr, *scale = nullptr, *shift = nullptr;
  TESSERA_INLINE Term shifted(std::int64_t by) const { return {x + by, mean, scale, shift}; }
  template <class X>
  struct Lane {
    X mean, scale, shift;
    TESSERA_INLINE X operator()(X x) const { return (x - mean) * scale + shift; }
  };
  template <class X>
  TESSERA_INLINE void begin(Lane<X>& l, std::int64_t lane) const {
    l = {load<X>(mean + lane), load<X>(scale + lane), load<X>(shift + lane)};
  }
};

// Two sums a lane.
template <class T>
struct Sums {
  T *first = nullptr, *second = nullptr;
  template <class X>
  struct Lane {
    X first, second;
  };
  template <class X>
  TESSERA_INLINE void begin(Lane<X>& l, std::int64_t lane) const {
    l = {load<X>(first + lane), load<X>(second + lane)};
  }
  template <class X>
  TESSERA_INLINE void end(const Lane<X>& l, std::int64_t lane) const {
    store(first + lane, l.first);
    store(second + lane, l.second);
  }
};

template <class T>
struct MomentsLoop {
  using Number = T;
  const T* x;
  const T* pivot;
  Sums<T> sums;
  TESSERA_INLINE MomentsLoop shifted(std::int64_t by) const { return {x + by, pivot, sums}; }
  template <class X>
  struct Lane {
    X pivot;
    typename Sums<T>::template Lane<X> sums;
  };
  template <class X>
  TESSERA_INLINE void begin(Lane<X>& l, std::int64_t lane) const {
    l.pivot = load<X>(pivot + lane);
    sums.begin(l.sums, lane);
  }
  template <class X>
  TESSERA_INLINE void step(Lane<X>& l, std::int64_t at) const {
    const X d = load<X>(x + at) - l.pivot;
    l.sums.first += d;
    l.sums.second += d * d;
  }
  template <class X>
  TESSERA_INLINE void end(const Lane<X>& l, std::int64_t lane) const {
    sums.end(l.sums, lane);
  }
};

template <class T, int terms>
struct AffineLoop {
  using Number = T;
  T* y;
  Term<T> in[terms];
  T floor;
  TESSERA_INLINE AffineLoop shifted(std::int64_t by) const {
    AffineLoop out = *this;
    out.y += by;
    for (auto& term : out.in) term = term.shifted(by);
    return out;
  }
  template <class X>
  struct Lane {
    typename Term<T>::template Lane<X> in[terms];
  };
  template <class X>
  TESSERA_INLINE void begin(Lane<X>& l, std::int64_t lane) const {
    for (int t = 0; t < terms; ++t) in[t].begin(l.in[t], lane);
  }
  template <class X>
  TESSERA_INLINE void step(Lane<X>& l, std::int64_t at) const {
    X v = l.in[0](load<X>(in[0].x + at));
    if constexpr (terms == 2) v += l.in[1](load<X>(in[1].x + at));
    // NaN is not below the floor, so it goes through ReLU and reaches the loss.
    const X lowest = floor - X{};
    store(y + at, v < lowest ? lowest : v);
  }
  template <class X>
  TESSERA_INLINE void end(const Lane<X>&, std::int64_t) const {}
};

enum class MaskKind { none, output, input };

template <class T, int gradients, MaskKind mask, int terms, bool write>
struct SumsLoop {
  using Number = T;
  const T* dy[2];
  const T* output;
  Term<T> mask_term;
  Term<T> in[2];
  Sums<T> sums[2];
  T* g;
  TESSERA_INLINE SumsLoop shifted(std::int64_t by) const {
    SumsLoop out = *this;
    for (int i = 0; i < gradients; ++i) out.dy[i] += by;
    if constexpr (mask == MaskKind::output) out.output += by;
    if constexpr (mask == MaskKind::input) out.mask_term = mask_term.shifted(by);
    for (int t = 0; t < terms; ++t) out.in[t] = in[t].shifted(by);
    if constexpr (write) out.g += by;
    return out;
  }
  template <class X>
  struct Lane {
    typename Term<T>::template Lane<X> mask_term;
    X mean[2];
    typename Sums<T>::template Lane<X> sums[2];
  };
  template <class X>
  TESSERA_INLINE void begin(Lane<X>& l, std::int64_t lane) const {
    if constexpr (mask == MaskKind::input) mask_term.begin(l.mask_term, lane);
    for (int t = 0; t < terms; ++t) {
      l.mean[t] = load<X>(in[t].mean + lane);
      sums[t].begin(l.sums[t], lane);
    }
  }
  template <class X>
  TESSERA_INLINE void step(Lane<X>& l, std::int64_t at) const {
    const X zero{};
    X v = load<X>(dy[0] + at);
    if constexpr (gradients == 2) v += load<X>(dy[1] + at);
    if constexpr (mask == MaskKind::output) v = load<X>(output + at) <= zero ? zero : v;
    if constexpr (mask == MaskKind::input) v = l.mask_term(load<X>(mask_term.x + at)) <= zero ? zero : v;
    for (int t = 0; t < terms; ++t) {
      l.sums[t].first += v;
      l.sums[t].second += v * (load<X>(in[t].x + at) - l.mean[t]);
    }
    if constexpr (write) store(g + at, v);
  }
  template <class X>
  TESSERA_INLINE void end(const Lane<X>& l, std::int64_t lane) const {
    for (int t = 0; t < terms; ++t) sums[t].end(l.sums[t], lane);
  }
};

template <class T, bool masked, bool added>
struct GradientLoop {
  using Number = T;
  const T* g;
  Term<T> in;
  const T *a, *b, *c;
  const T* addend;
  T* dx;
  TESSERA_INLINE GradientLoop shifted(std::int64_t by) const {
    return {g + by, in.shifted(by), a, b, c, added ? addend + by : addend, dx + by};
  }
  template <class X>
  struct Lane {
    typename Term<T>::template Lane<X> in;
    X a, b, c;
  };
  template <class X>
  TESSERA_INLINE void begin(Lane<X>& l, std::int64_t lane) const {
    in.begin(l.in, lane);
    l.a = load<X>(a + lane);
    l.b = load<X>(b + lane);
    l.c = load<X>(c + lane);
  }
  template <class X>
  TESSERA_INLINE void step(Lane<X>& l, std::int64_t at) const {
    const X zero{}, x = load<X>(in.x + at);
    X v = load<X>(g + at);
    if constexpr (masked) v = l.in(x) <= zero ? zero : v;
    v = l.a * v + (l.b * (x - l.in.mean) + l.c);
    if constexpr (added) v += load<X>(addend + at);
    store(dx + at, v);
  }
  template <class X>
  TESSERA_INLINE void end(const Lane<X>&, std::int64_t) const {}
};

}  // namespace tessera::loops
