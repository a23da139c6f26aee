// What the sources that call NCCL share.
#pragma once

#include <ATen/ops/empty.h>
#include <nccl.h>

#include <cstring>
#include <exception>
#include <type_traits>

#include "tessera/base/error.h"

namespace tessera {

inline void check_nccl(ncclResult_t result, const char* call) {
  if (result != ncclSuccess)
    throw Error(concat(call, ": ", ncclGetErrorString(result),
                       "; NCCL_DEBUG=WARN in the environment makes NCCL say more, --transport mpi does without it"));
}

/// On the way out of an exception the group is left as it is: others may never join what it has queued, and NCCL would
/// wait for that, even to abort. What caught the exception ends the job.
inline void close_nccl(ncclComm_t group) {
  if (std::uncaught_exceptions() == 0) ncclCommDestroy(group);
}

/// A plain value as bytes that travel, and back.
template <class T>
at::Tensor as_bytes(const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  at::Tensor bytes = at::empty({static_cast<std::int64_t>(sizeof value)}, at::kByte);
  std::memcpy(bytes.data_ptr(), &value, sizeof value);
  return bytes;
}
template <class T>
T from_bytes(const at::Tensor& bytes) {
  T value;
  std::memcpy(&value, bytes.data_ptr(), sizeof value);
  return value;
}

}  // namespace tessera
