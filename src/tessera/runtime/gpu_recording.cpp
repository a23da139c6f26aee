#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <map>
#include <mutex>

#include "tessera/runtime/recording.h"

namespace tessera {
namespace {

class GpuRecording final : public Recording {
 public:
  // Whether it could be recorded.
  bool take(const std::function<void()>& work) {
    try {
      C10_CUDA_CHECK(cudaDeviceSynchronize());
      c10::cuda::CUDACachingAllocator::emptyCache();  // what the kernels took so far they will not take again
      const c10::cuda::CUDAStreamGuard beside(stream_for_recording());
      // Other threads may go on meanwhile: they bring images.
      graph_.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
      try {
        work();
        graph_.capture_end();
      } catch (...) {
        give_up();
        throw;
      }
      return true;
    } catch (...) {
      static_cast<void>(cudaGetLastError());
      return false;
    }
  }
  void play() override { graph_.replay(); }

 private:
  // One for each GPU: cuBLAS keeps memory for every stream that it has seen.
  static c10::cuda::CUDAStream stream_for_recording() {
    static std::mutex mutex;
    static std::map<int, c10::cuda::CUDAStream> streams;
    const std::lock_guard lock(mutex);
    return streams.try_emplace(c10::cuda::current_device(), c10::cuda::getStreamFromPool()).first->second;
  }

  // Torch's own end of a recording that is spoilt throws, and leaves behind what torch had begun. So that one ends
  // first, and then an empty one in its place.
  void give_up() noexcept {
    const cudaStream_t stream = c10::cuda::getCurrentCUDAStream().stream();
    cudaGraph_t spoilt = nullptr;
    static_cast<void>(cudaStreamEndCapture(stream, &spoilt));
    if (spoilt) static_cast<void>(cudaGraphDestroy(spoilt));
    static_cast<void>(cudaGetLastError());
    try {
      C10_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
      graph_.capture_end();
    } catch (...) {
      static_cast<void>(cudaGetLastError());
    }
  }

  at::cuda::CUDAGraph graph_;
};

}  // namespace

std::unique_ptr<Recording> record_kernels(const std::function<void()>& work) {
  auto recording = std::make_unique<GpuRecording>();
  if (!recording->take(work)) return nullptr;
  return recording;
}

}  // namespace tessera
