// What pools do with the channels of a pixel.
#pragma once

#include <cstdint>

#include "tessera/ops/cpu/isa/tables.h"

namespace tessera {

template <class T>
struct PoolLoops {
  /// best and winner take in a pixel; a NaN wins, as in torch.
  void (*take_max)(T* best, std::uint8_t* winner, const T* x, std::uint8_t tap, std::int64_t channels);
  /// dx gets the gradient of the channels that this tap has won.
  void (*give_back)(T* dx, const T* dy, const std::uint8_t* winner, std::uint8_t tap, std::int64_t channels);
  void (*add_scaled)(T* to, const T* from, T scale, std::int64_t channels);
};

struct PoolKernels {
  PoolLoops<float> of_float;
  PoolLoops<double> of_double;
};
TESSERA_ISA_TABLE(PoolKernels, pool_kernels)

template <class T>
const PoolLoops<T>& pool_loops();
template <>
inline const PoolLoops<float>& pool_loops<float>() {
  return pool_kernels().of_float;
}
template <>
inline const PoolLoops<double>& pool_loops<double>() {
  return pool_kernels().of_double;
}

}  // namespace tessera
