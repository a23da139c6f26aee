// Values that wait in the host's memory. Copies have streams of their own, one out and one in, and go on beside the
// kernels; a value that is on its way back is waited for by the stream that computes, not by the host.
#include <ATen/ops/empty_strided.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/runtime/store.h"

namespace tessera {
namespace {

class Event {
 public:
  Event() { C10_CUDA_CHECK(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming)); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record(cudaStream_t stream) { C10_CUDA_CHECK(cudaEventRecord(event_, stream)); }
  void hold(cudaStream_t stream) const { C10_CUDA_CHECK(cudaStreamWaitEvent(stream, event_, 0)); }
  void wait() const { C10_CUDA_CHECK(cudaEventSynchronize(event_)); }
  bool over() const {
    if (cudaEventQuery(event_) == cudaSuccess) return true;
    static_cast<void>(cudaGetLastError());  // "not yet" is no error
    return false;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

// Memory that a GPU reads and writes by itself. The pages are asked for by many threads: clearing them takes longer
// than anything else here.
class Pinned {
 public:
  explicit Pinned(std::size_t bytes) : bytes_((bytes + huge - 1) / huge * huge) {
    data_ = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    require(data_ != MAP_FAILED, "--store host: the host has no ", bytes_ >> 20, " MiB left; use --recompute block:2");
    ::madvise(data_, bytes_, MADV_HUGEPAGE);
    const std::size_t workers = std::max(1U, std::thread::hardware_concurrency() / 2);
    std::vector<std::thread> threads;
    for (std::size_t w = 0; w < workers; ++w)
      threads.emplace_back([&, w] {
        for (std::size_t at = w * huge; at < bytes_; at += workers * huge)
          for (std::size_t page = at; page < std::min(at + huge, bytes_); page += 4096)
            static_cast<volatile char*>(data_)[page] = 0;
      });
    for (std::thread& thread : threads) thread.join();
    const cudaError_t error = cudaHostRegister(data_, bytes_, cudaHostRegisterDefault);
    if (error != cudaSuccess) {
      ::munmap(data_, bytes_);
      throw Error(concat("--store host: ", bytes_ >> 20,
                         " MiB of the host's memory cannot be pinned: ", cudaGetErrorString(error)));
    }
  }
  ~Pinned() {
    cudaHostUnregister(data_);
    ::munmap(data_, bytes_);
  }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;
  void* data() const { return data_; }

 private:
  static constexpr std::size_t huge = std::size_t{2} << 20;
  std::size_t bytes_;
  void* data_ = nullptr;
};

struct Buffer {
  std::unique_ptr<Pinned> memory;
  std::unique_ptr<Event> written, read;  // the last copies into it and out of it; null: none
};

class PinnedStore final : public Store {
 public:
  explicit PinnedStore(double leaving) : most_leaving_(static_cast<std::int64_t>(leaving)) {}
  std::unique_ptr<Stored> put(const at::Tensor& tensor) override;
  std::int64_t peak_bytes() const override { return peak_; }
  // Each has pages of its own.
  std::size_t smallest() const override { return std::size_t{1} << 20; }
  ~PinnedStore() override {
    cudaStreamSynchronize(out_.stream());
    cudaStreamSynchronize(in_.stream());
  }

 private:
  class Waiting;

  struct Leaving {
    at::Tensor tensor;
    const Event* written;
  };

  Buffer take(std::int64_t bytes) {
    live_ += bytes;
    peak_ = std::max(peak_, live_);
    auto& free = free_[bytes];
    if (free.empty()) return {std::make_unique<Pinned>(static_cast<std::size_t>(bytes)), nullptr, nullptr};
    Buffer buffer = std::move(free.back());
    free.pop_back();
    return buffer;
  }
  void give_back(std::int64_t bytes, Buffer buffer) {
    live_ -= bytes;
    std::erase_if(leaving_, [&](const Leaving& l) {
      if (l.written != buffer.written.get()) return false;
      l.written->wait();
      return true;
    });
    free_[bytes].push_back(std::move(buffer));
  }
  // What has left holds no memory any more; copies end in the order in which they began.
  void let_go() {
    while (!leaving_.empty() && leaving_.front().written->over()) leaving_.pop_front();
  }
  void make_room(std::int64_t bytes) {
    let_go();
    std::int64_t all = bytes;
    for (const Leaving& l : leaving_) all += static_cast<std::int64_t>(l.tensor.nbytes());
    while (!leaving_.empty() && all > most_leaving_) {
      leaving_.front().written->wait();
      all -= static_cast<std::int64_t>(leaving_.front().tensor.nbytes());
      leaving_.pop_front();
    }
  }

  c10::cuda::CUDAStream out_ = c10::cuda::getStreamFromPool(), in_ = c10::cuda::getStreamFromPool();
  const std::int64_t most_leaving_;  // of the GPU's memory, on its way out: with more of it the kernels wait
  std::deque<Leaving> leaving_;
  std::map<std::int64_t, std::vector<Buffer>> free_;  // by length
  std::int64_t live_ = 0, peak_ = 0;
};

class PinnedStore::Waiting final : public Stored {
 public:
  Waiting(PinnedStore& store, const at::Tensor& tensor)
      : store_(store),
        sizes_(tensor.sizes().vec()),
        strides_(tensor.strides().vec()),
        options_(tensor.options()),
        bytes_(static_cast<std::int64_t>(tensor.nbytes())) {
    store_.make_room(bytes_);
    buffer_ = store_.take(bytes_);
    const cudaStream_t out = store_.out_.stream();
    if (buffer_.read) buffer_.read->hold(out);
    Event made;
    made.record(c10::cuda::getCurrentCUDAStream().stream());
    made.hold(out);
    C10_CUDA_CHECK(cudaMemcpyAsync(buffer_.memory->data(), tensor.data_ptr(), static_cast<std::size_t>(bytes_),
                                   cudaMemcpyDeviceToHost, out));
    if (!buffer_.written) buffer_.written = std::make_unique<Event>();
    buffer_.written->record(out);
    store_.leaving_.push_back({tensor, buffer_.written.get()});
  }
  ~Waiting() override {
    if (coming_.defined()) buffer_.read->wait();  // nobody took it, and its memory goes now
    store_.give_back(bytes_, std::move(buffer_));
  }

  void prefetch() override {
    if (coming_.defined()) return;
    store_.let_go();
    coming_ = at::empty_strided(sizes_, strides_, options_);
    const cudaStream_t in = store_.in_.stream();
    Event free;  // the memory may have been somebody else's until now
    free.record(c10::cuda::getCurrentCUDAStream().stream());
    free.hold(in);
    buffer_.written->hold(in);
    C10_CUDA_CHECK(cudaMemcpyAsync(coming_.data_ptr(), buffer_.memory->data(), static_cast<std::size_t>(bytes_),
                                   cudaMemcpyHostToDevice, in));
    if (!buffer_.read) buffer_.read = std::make_unique<Event>();
    buffer_.read->record(in);
  }
  at::Tensor get() override {
    prefetch();
    buffer_.read->hold(c10::cuda::getCurrentCUDAStream().stream());
    return std::exchange(coming_, {});
  }

 private:
  PinnedStore& store_;
  const std::vector<std::int64_t> sizes_, strides_;
  const at::TensorOptions options_;
  const std::int64_t bytes_;
  Buffer buffer_;
  at::Tensor coming_;
};

std::unique_ptr<Stored> PinnedStore::put(const at::Tensor& tensor) {
  return std::make_unique<Waiting>(*this, tensor.is_non_overlapping_and_dense() ? tensor : tensor.clone());
}

}  // namespace

std::unique_ptr<Store> make_pinned_store(double leaving) { return std::make_unique<PinnedStore>(leaving); }

}  // namespace tessera
