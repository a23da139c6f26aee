// Which processor a rank computes on.
#pragma once

#include <c10/core/DeviceType.h>

namespace tessera {

/// GPUs that this process sees; 0 where the program or its torch was built without CUDA.
int gpu_count();

/// For the calling thread, which is a rank: its GPU becomes the current one. The ranks of a machine take its GPUs in
/// turn, and share them if there are fewer. Nothing to do for CPUs.
///
/// All ranks of a GPU queue their work on its default stream. So whatever one rank has queued before it hands a tensor
/// to another, or gives its memory back, comes before what the other queues afterwards.
void use_device(c10::DeviceType device, int rank_on_machine);

/// For the whole process.
struct GpuSettings {
  bool tf32 = false;            ///< float32 products may round their factors to 10 bits
  bool try_algorithms = false;  ///< the first convolution of each shape tries all of cuDNN's algorithms
};
void configure_gpus(const GpuSettings& settings);

}  // namespace tessera
