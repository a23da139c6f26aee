#include "tessera/runtime/memory.h"

#include <c10/core/CPUAllocator.h>
#include <sanitizer/asan_interface.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <mutex>
#include <new>
#include <set>
#include <string>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/ops/torch_compat.h"

namespace tessera {
namespace {

constexpr std::size_t alignment = 64;
constexpr std::size_t small_limit = std::size_t{1} << 16;    // below this, malloc does well by itself
constexpr std::size_t segment_bytes = std::size_t{1} << 26;  // what is mapped at once, at least

thread_local MemoryAccountPtr host_account, gpu_account;

std::size_t round_up(std::size_t n, std::size_t to) { return (n + to - 1) / to * to; }

class SegmentPool;

// A piece of a segment. Neighbours are linked so that free ones can be merged.
struct Block {
  SegmentPool* pool = nullptr;
  char* data = nullptr;
  std::size_t size = 0;
  bool free = true;
  Block *previous = nullptr, *next = nullptr;
};

struct BySize {
  bool operator()(const Block* a, const Block* b) const {
    return a->size != b->size ? a->size < b->size : a->data < b->data;
  }
};

// The sanitizer of addresses, where there is one, knows what is handed out: beyond it and after it are errors.
class SegmentPool {
 public:
  Block* take(std::size_t bytes) {
    const std::size_t size = round_up(bytes, std::size_t{1} << 12);
    const std::lock_guard lock(mutex_);
    Block wanted;
    wanted.size = size;
    auto found = free_.lower_bound(&wanted);
    Block* block = found == free_.end() ? map(size) : *found;
    if (found != free_.end()) free_.erase(found);
    block->free = false;
    if (block->size > size) split(block, size);
    ASAN_UNPOISON_MEMORY_REGION(block->data, bytes);
    return block;
  }

  void give(Block* block) {
    const std::lock_guard lock(mutex_);
    ASAN_POISON_MEMORY_REGION(block->data, block->size);
    block->free = true;
    if (block->next && block->next->free) {
      free_.erase(block->next);
      merge_with_next(block);
    }
    if (block->previous && block->previous->free) {
      block = block->previous;
      free_.erase(block);
      merge_with_next(block);
    }
    free_.insert(block);
  }

  // Segments of which nothing is in use.
  void unmap() {
    const std::lock_guard lock(mutex_);
    for (auto i = free_.begin(); i != free_.end();) {
      Block* block = *i;
      const bool whole = !block->previous && !block->next;
      i = whole ? free_.erase(i) : std::next(i);
      if (!whole) continue;
      ASAN_UNPOISON_MEMORY_REGION(block->data, block->size);
      munmap(block->data, block->size);
      delete block;
    }
  }

 private:
  Block* map(std::size_t size) {
    const std::size_t bytes = round_up(std::max(size, segment_bytes), std::size_t{1} << 21);
    void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED)
      throw Error(
          concat("out of memory: the system does not give another ", human_bytes(static_cast<std::int64_t>(bytes)),
                 "; use --recompute block, more tiles (--num-spatial-parts), stages (--split-size) or --parts, ",
                 "or a smaller --image-size; tessera plan estimates what a rank needs"));
    ASAN_POISON_MEMORY_REGION(data, bytes);
    madvise(data, bytes, MADV_HUGEPAGE);  // fewer faults and fewer misses of the address cache, where it is allowed
    return new Block{this, static_cast<char*>(data), bytes};
  }

  void split(Block* block, std::size_t size) {
    auto* rest = new Block{this, block->data + size, block->size - size, true, block, block->next};
    if (rest->next) rest->next->previous = rest;
    block->next = rest;
    block->size = size;
    free_.insert(rest);
  }

  static void merge_with_next(Block* block) {
    Block* gone = block->next;
    block->size += gone->size;
    block->next = gone->next;
    if (block->next) block->next->previous = block;
    delete gone;
  }

  std::mutex mutex_;
  std::set<Block*, BySize> free_;
};

constexpr int most_pools = 64;
thread_local int numa_node = 0;

std::array<SegmentPool, most_pools>& pools() {
  // Never destroyed: tensors of static life free their memory at exit.
  static auto* all = new std::array<SegmentPool, most_pools>;
  return *all;
}

// That of the calling thread's NUMA node.
SegmentPool& pool() { return pools()[static_cast<std::size_t>(numa_node % most_pools)]; }

// What a tensor's deleter needs to know. It stands just before the data, because torch wants to free memory by its
// address alone.
struct alignas(alignment) Header {
  MemoryAccountPtr account;
  std::size_t bytes = 0;
  Block* block = nullptr;  // null: from malloc
};
static_assert(sizeof(Header) == alignment);

void release(void* data) {
  if (!data) return;
  Header* header = static_cast<Header*>(data) - 1;
  if (header->account) header->account->remove(static_cast<std::int64_t>(header->bytes));
  Block* block = header->block;
  header->~Header();
  if (block)
    block->pool->give(block);
  else
    std::free(header);
}

class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) TESSERA_ALLOCATE_CONST override {
    const c10::Device cpu(c10::DeviceType::CPU);
    if (bytes == 0) return {nullptr, nullptr, &release, cpu};
    Header header{host_account, bytes, nullptr};
    void* memory = nullptr;
    if (bytes >= small_limit && reuse.load(std::memory_order_relaxed)) {
      header.block = pool().take(bytes + sizeof(Header));
      memory = header.block->data;
    } else if (posix_memalign(&memory, alignment, bytes + sizeof(Header)) != 0) {
      throw Error(concat("out of memory: no ", bytes, " bytes for a tensor"));
    }
    if (header.account) header.account->add(static_cast<std::int64_t>(bytes));
    void* data = new (memory) Header(std::move(header)) + 1;
    return {data, data, &release, cpu};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  TESSERA_ALLOCATOR_COPY_DATA

  std::atomic<bool> reuse{true};
};

CountingAllocator& allocator() {
  static auto* instance = new CountingAllocator;
  return *instance;
}

}  // namespace

void MemoryAccount::add(std::int64_t bytes) {
  const std::int64_t live = live_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  std::int64_t peak = peak_.load(std::memory_order_relaxed);
  while (live > peak && !peak_.compare_exchange_weak(peak, live, std::memory_order_relaxed)) {
  }
}

MemoryScope::MemoryScope(MemoryAccountPtr account, c10::DeviceType device)
    : slot_(device == c10::DeviceType::CPU ? host_account : gpu_account),
      before_(std::exchange(slot_, std::move(account))) {}
MemoryScope::~MemoryScope() { slot_ = std::move(before_); }

MemoryAccountPtr current_account() { return host_account; }
MemoryAccountPtr current_gpu_account() { return gpu_account; }

void install_cpu_allocator(BlockReuse reuse) {
  allocator().reuse = reuse == BlockReuse::on;
  // The highest priority that torch knows, so that nothing loaded later takes over.
  c10::SetCPUAllocator(&allocator(), /*priority=*/255);
}

void give_back_unused_memory() {
  for (SegmentPool& each : pools()) each.unmap();
}

void take_blocks_of(int node) { numa_node = node; }
int takes_blocks_of() { return numa_node; }

double free_host_bytes() {
  double free = std::numeric_limits<double>::infinity();
  std::ifstream machine("/proc/meminfo");
  for (std::string line; std::getline(machine, line);)
    if (line.starts_with("MemAvailable:")) free = 1024 * std::strtod(line.c_str() + 13, nullptr);
  const auto number_in = [](const char* path) {
    double number = std::numeric_limits<double>::quiet_NaN();
    std::ifstream(path) >> number;  // "max" is none
    return number;
  };
  const double most = number_in("/sys/fs/cgroup/memory.max"), taken = number_in("/sys/fs/cgroup/memory.current");
  if (most > 0 && taken >= 0) free = std::min(free, most - taken);
  return free;
}

std::int64_t peak_resident_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return std::int64_t{usage.ru_maxrss} * 1024;
}

}  // namespace tessera
