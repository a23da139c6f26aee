#include <ATen/ops/empty.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime_api.h>

#include <mutex>
#include <unordered_map>

#include "tessera/runtime/memory.h"

namespace tessera {
namespace {

struct Charge {
  MemoryAccountPtr account;
  std::int64_t bytes;
};

// Blocks that were charged to an account, by address.
struct Charges {
  std::mutex mutex;
  std::unordered_map<std::size_t, Charge> by_address;
};

Charges& charges() {
  static auto* instance = new Charges;  // never destroyed: tensors of static life free their memory at exit
  return *instance;
}

// Called by torch's allocator for everything it does, under its own lock.
template <class Entry>
void note(const Entry& entry) {
  if (entry.action_ == Entry::ALLOC) {
    MemoryAccountPtr account = current_gpu_account();
    if (!account) return;
    const auto bytes = static_cast<std::int64_t>(entry.size_);
    account->add(bytes);
    const std::lock_guard lock(charges().mutex);
    charges().by_address[entry.addr_] = {std::move(account), bytes};
  } else if (entry.action_ == Entry::FREE_REQUESTED) {
    const std::lock_guard lock(charges().mutex);
    const auto found = charges().by_address.find(entry.addr_);
    if (found == charges().by_address.end()) return;
    found->second.account->remove(found->second.bytes);
    charges().by_address.erase(found);
  }
}

}  // namespace

void count_gpu_memory() {
  static std::once_flag once;
  std::call_once(once, [] {
    at::empty({1}, at::TensorOptions().device(at::kCUDA));  // the allocator is there from the first tensor on
    c10::cuda::CUDACachingAllocator::get()->attachAllocatorTraceTracker([](const auto& entry) { note(entry); });
  });
}

std::int64_t peak_gpu_bytes() {
  return c10::cuda::CUDACachingAllocator::getDeviceStats(c10::cuda::current_device()).allocated_bytes[0].peak;
}
double free_gpu_bytes() {
  std::size_t free = 0, total = 0;
  C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  return static_cast<double>(free);
}
void reset_peak_gpu_bytes() { c10::cuda::CUDACachingAllocator::resetPeakStats(c10::cuda::current_device()); }

}  // namespace tessera
