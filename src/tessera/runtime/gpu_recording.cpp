#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>

#include "tessera/runtime/recording.h"

namespace tessera {
namespace {

class GpuRecording final : public Recording {
 public:
  // Whether it could be recorded.
  bool take(const std::function<void()>& work) {
    C10_CUDA_CHECK(cudaDeviceSynchronize());
    c10::cuda::CUDACachingAllocator::emptyCache();  // what the kernels took so far they will not take again
    const c10::cuda::CUDAStreamGuard beside(c10::cuda::getStreamFromPool());
    // Other threads may go on meanwhile: they bring images.
    graph_.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
    try {
      work();
    } catch (...) {
      give_up();
      return false;
    }
    try {
      graph_.capture_end();
    } catch (...) {
      static_cast<void>(cudaGetLastError());
      return false;
    }
    return true;
  }
  void play() override { graph_.replay(); }

 private:
  void give_up() noexcept {
    static_cast<void>(cudaGetLastError());
    try {
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
