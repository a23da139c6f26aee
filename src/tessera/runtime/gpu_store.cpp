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
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/runtime/extents.h"
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
  char* data() const { return static_cast<char*>(data_); }
  std::size_t bytes() const { return bytes_; }

 private:
  static constexpr std::size_t huge = std::size_t{2} << 20;
  std::size_t bytes_;
  void* data_ = nullptr;
};

// What was pinned stays so, and serves tensors of any length: a tile's values have many, and differ from tile to tile.
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
    std::shared_ptr<const Event> written;
  };

  std::vector<Extent> take(std::int64_t bytes) {
    if (const std::size_t more = extents_.missing(static_cast<std::size_t>(bytes))) {
      slabs_.push_back(std::make_unique<Pinned>(std::max(more, smallest_slab)));
      extents_.add(slabs_.back()->bytes());
    }
    live_ += bytes;
    peak_ = std::max(peak_, live_);
    return extents_.take(static_cast<std::size_t>(bytes));
  }
  void give_back(std::int64_t bytes, const std::vector<Extent>& pieces, std::uint64_t last_read) {
    live_ -= bytes;
    extents_.give_back(pieces, last_read);
  }
  char* data(const Extent& piece) const { return slabs_[piece.slab]->data() + piece.at; }

  // One more copy back has begun; they end in the order in which they began.
  std::uint64_t begun(std::shared_ptr<const Event> read) {
    while (!reads_.empty() && reads_.begin()->second->over()) reads_.erase(reads_.begin());
    reads_.emplace(++last_read_, std::move(read));
    return last_read_;
  }
  // Whoever had these pieces before may be reading them yet.
  void hold_for_readers(const std::vector<Extent>& pieces, cudaStream_t stream) const {
    std::uint64_t last = 0;
    for (const Extent& piece : pieces) last = std::max(last, piece.used);
    const auto read = reads_.find(last);
    if (read != reads_.end()) read->second->hold(stream);
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

  static constexpr std::size_t unit = std::size_t{1} << 20, smallest_slab = std::size_t{64} << 20;
  c10::cuda::CUDAStream out_ = c10::cuda::getStreamFromPool(), in_ = c10::cuda::getStreamFromPool();
  const std::int64_t most_leaving_;  // of the GPU's memory, on its way out: with more of it the kernels wait
  std::deque<Leaving> leaving_;
  std::vector<std::unique_ptr<Pinned>> slabs_;
  Extents extents_{unit};
  std::map<std::uint64_t, std::shared_ptr<const Event>> reads_;  // by number: those that may not be over
  std::uint64_t last_read_ = 0;
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
    pieces_ = store_.take(bytes_);
    const cudaStream_t out = store_.out_.stream();
    store_.hold_for_readers(pieces_, out);
    Event made;
    made.record(c10::cuda::getCurrentCUDAStream().stream());
    made.hold(out);
    piece_by_piece(tensor, [&](char* here, char* there, std::size_t bytes) {
      C10_CUDA_CHECK(cudaMemcpyAsync(here, there, bytes, cudaMemcpyDeviceToHost, out));
    });
    written_->record(out);
    store_.leaving_.push_back({tensor, written_});
  }
  ~Waiting() override {
    if (coming_.defined()) read_->wait();  // nobody took it, and its memory goes now
    store_.give_back(bytes_, pieces_, last_read_);
  }

  void prefetch() override {
    if (coming_.defined()) return;
    store_.let_go();
    coming_ = at::empty_strided(sizes_, strides_, options_);
    const cudaStream_t in = store_.in_.stream();
    Event free;  // the memory may have been somebody else's until now
    free.record(c10::cuda::getCurrentCUDAStream().stream());
    free.hold(in);
    written_->hold(in);
    piece_by_piece(coming_, [&](char* here, char* there, std::size_t bytes) {
      C10_CUDA_CHECK(cudaMemcpyAsync(there, here, bytes, cudaMemcpyHostToDevice, in));
    });
    const auto read = std::make_shared<Event>();
    read->record(in);
    read_ = read;
    last_read_ = store_.begun(read);
  }
  at::Tensor get() override {
    prefetch();
    read_->hold(c10::cuda::getCurrentCUDAStream().stream());
    return std::exchange(coming_, {});
  }

 private:
  // copy(where a piece is here, where it is in the tensor, its length)
  template <class Copy>
  void piece_by_piece(const at::Tensor& tensor, Copy copy) const {
    char* there = static_cast<char*>(tensor.data_ptr());
    auto left = static_cast<std::size_t>(bytes_);
    for (const Extent& piece : pieces_) {
      const std::size_t bytes = std::min(left, piece.bytes);
      copy(store_.data(piece), there, bytes);
      there += bytes;
      left -= bytes;
    }
  }

  PinnedStore& store_;
  const std::vector<std::int64_t> sizes_, strides_;
  const at::TensorOptions options_;
  const std::int64_t bytes_;
  std::vector<Extent> pieces_;
  const std::shared_ptr<Event> written_ = std::make_shared<Event>();
  std::shared_ptr<const Event> read_;
  std::uint64_t last_read_ = 0;
  at::Tensor coming_;
};

std::unique_ptr<Stored> PinnedStore::put(const at::Tensor& tensor) {
  return std::make_unique<Waiting>(*this, tensor.is_non_overlapping_and_dense() ? tensor : tensor.clone());
}

}  // namespace

std::unique_ptr<Store> make_pinned_store(double leaving) { return std::make_unique<PinnedStore>(leaving); }

}  // namespace tessera
