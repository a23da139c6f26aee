#include "tessera/ops/cpu/isa/pools.h"

namespace tessera::TESSERA_ISA {
namespace {

// Written plainly and left to the compiler's vectoriser.
template <class T>
void take_max(T* __restrict__ best, std::uint8_t* __restrict__ winner, const T* __restrict__ x, std::uint8_t tap,
              std::int64_t channels) {
  for (std::int64_t c = 0; c < channels; ++c) {
    const bool better = x[c] > best[c] || x[c] != x[c];
    best[c] = better ? x[c] : best[c];
    winner[c] = better ? tap : winner[c];
  }
}

template <class T>
void give_back(T* __restrict__ dx, const T* __restrict__ dy, const std::uint8_t* __restrict__ winner, std::uint8_t tap,
               std::int64_t channels) {
  for (std::int64_t c = 0; c < channels; ++c) dx[c] += winner[c] == tap ? dy[c] : T(0);
}

template <class T>
void add_scaled(T* __restrict__ to, const T* __restrict__ from, T scale, std::int64_t channels) {
  for (std::int64_t c = 0; c < channels; ++c) to[c] += from[c] * scale;
}

template <class T>
constexpr PoolLoops<T> loops{take_max<T>, give_back<T>, add_scaled<T>};

}  // namespace

const PoolKernels pool_kernels{loops<float>, loops<double>};

}  // namespace tessera::TESSERA_ISA
