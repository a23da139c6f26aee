// Differences between libtorch 1.13 and 2.x, in one place.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/version.h>

#if TORCH_VERSION_MAJOR >= 2
#include <optional>
namespace tessera {
using OptionalTensor = std::optional<at::Tensor>;
}
#else
#include <c10/util/Optional.h>
namespace tessera {
using OptionalTensor = c10::optional<at::Tensor>;
}
#endif

// c10::Allocator::allocate lost its const, and copy_data was added.
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 3)
#define TESSERA_ALLOCATE_CONST
#define TESSERA_ALLOCATOR_COPY_DATA \
  void copy_data(void* to, const void* from, std::size_t count) const override { std::memcpy(to, from, count); }
#else
#define TESSERA_ALLOCATE_CONST const
#define TESSERA_ALLOCATOR_COPY_DATA
#endif
