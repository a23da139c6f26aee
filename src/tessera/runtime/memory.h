// Counts live tensor bytes exactly, rank by rank, and keeps freed blocks for the next step.
//
// Fresh pages are slow: the kernel clears each one at its first touch, which costs a fifth of a training step when
// every activation is mapped and unmapped again. So blocks come from large segments that stay with the process; they
// are split, merged with free neighbours, and reused best fit first.
#pragma once

#include <c10/core/DeviceType.h>

#include <atomic>
#include <cstdint>
#include <memory>

namespace tessera {

/// Live and peak bytes, as asked for (rounding and reuse do not count). Thread-safe.
class MemoryAccount {
 public:
  void add(std::int64_t bytes);
  void remove(std::int64_t bytes) { live_.fetch_sub(bytes, std::memory_order_relaxed); }
  std::int64_t live_bytes() const { return live_.load(std::memory_order_relaxed); }
  std::int64_t peak_bytes() const { return peak_.load(std::memory_order_relaxed); }
  /// The peak starts again from what is live now.
  void reset_peak() { peak_.store(live_bytes(), std::memory_order_relaxed); }

 private:
  std::atomic<std::int64_t> live_{0}, peak_{0};
};

using MemoryAccountPtr = std::shared_ptr<MemoryAccount>;

/// While it lives, tensors made by this thread in the device's memory are charged to the account; they are credited to
/// it whoever frees them.
class MemoryScope {
 public:
  explicit MemoryScope(MemoryAccountPtr account, c10::DeviceType device = c10::DeviceType::CPU);
  ~MemoryScope();
  MemoryScope(const MemoryScope&) = delete;
  MemoryScope& operator=(const MemoryScope&) = delete;

 private:
  MemoryAccountPtr& slot_;
  MemoryAccountPtr before_;
};

/// That of the calling thread for the host's memory; null: none.
MemoryAccountPtr current_account();

/// Whether freed blocks are kept. Benchmarks switch it off to measure torch as it comes.
enum class BlockReuse { on, off };

/// Makes torch take CPU memory here, from now on and for the whole process. Calling it again only changes the reuse.
void install_cpu_allocator(BlockReuse reuse = BlockReuse::on);

/// To the system, what tensors have taken and nobody uses any more: before something else is run.
void give_back_unused_memory();

/// From now on the calling thread takes blocks that only threads of the same NUMA node have used, so that their pages
/// lie there. Without it: of node 0.
void take_blocks_of(int numa_node);
/// That of the calling thread.
int takes_blocks_of();

/// Makes accounts of GPU memory count, from now on and for the whole process: what torch's allocator hands out, as it
/// rounds it. Nothing to do where there is no CUDA.
void count_gpu_memory();
/// That of the calling thread; null: none.
MemoryAccountPtr current_gpu_account();

/// What torch has handed out of the current GPU's memory at most since the last reset, to all ranks of the process.
std::int64_t peak_gpu_bytes();
void reset_peak_gpu_bytes();

/// What is free of the current GPU's memory; 0 where there is no CUDA.
double free_gpu_bytes();
/// What this process may still take of the host's memory, as the kernel and its control group say.
double free_host_bytes();

/// Largest resident size of the process so far, as the kernel counts it.
std::int64_t peak_resident_bytes();

}  // namespace tessera
