// Which device the tests compute on: TESSERA_TEST_DEVICE is cpu (the default) or cuda.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdlib>
#include <string_view>

namespace tessera::test {

inline at::DeviceType device() {
  const char* chosen = std::getenv("TESSERA_TEST_DEVICE");
  return chosen && std::string_view(chosen) == "cuda" ? at::kCUDA : at::kCPU;
}
/// Tensors of doubles there.
inline at::TensorOptions doubles() { return at::TensorOptions().dtype(at::kDouble).device(device()); }

}  // namespace tessera::test
