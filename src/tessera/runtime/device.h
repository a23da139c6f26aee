// Which processor a rank computes on, and how it talks to the others.
#pragma once

#include <c10/core/DeviceType.h>

#include <string>
#include <vector>

#include "tessera/comm/communicator.h"

namespace tessera {

/// GPUs that this process sees; 0 where the program or its torch was built without CUDA.
int gpu_count();

/// For the calling thread, which is a rank: its GPU becomes the current one. The ranks of a machine take its GPUs in
/// turn, and share them if there are fewer. Nothing to do for CPUs.
///
/// All ranks of a GPU queue their work on its default stream. So whatever one rank has queued before it hands a tensor
/// to another, or gives its memory back, comes before what the other queues afterwards. A copy between two GPUs waits
/// for both of their default streams, and both wait for it.
void use_device(c10::DeviceType device, int rank_on_machine);

/// For the whole process.
struct GpuSettings {
  bool tf32 = false;            ///< float32 products may round their factors to 10 bits
  bool try_algorithms = false;  ///< the first convolution of each shape tries all of cuDNN's algorithms
};
void configure_gpus(const GpuSettings& settings);

/// What the user asks for.
struct DeviceWish {
  bool cuda = false;
  bool bfloat16 = false, tf32 = false;
  std::string transport = "auto";  ///< or mpi, or nccl
};

/// What there is, over all ranks.
struct DeviceFacts {
  bool cuda_built = false, nccl_built = false;
  int rank_without_gpu = -1;  ///< the first that sees none; -1: there is no such rank
  bool bfloat16 = false;      ///< every rank's GPU computes in it
  bool ranks_are_processes = false;
  bool own_gpus = false;  ///< no two ranks share one
};
/// `world`: the processes, all of which call this; null where ranks are threads. Looks at GPUs if they are wished for.
DeviceFacts device_facts(const DeviceWish& wish, Communicator* world, int rank_on_machine);

/// What cannot be, each with what to do about it.
std::vector<std::string> device_problems(const DeviceWish& wish, const DeviceFacts& facts);

/// What carries messages and sums from GPU to GPU.
enum class Transport { mpi, nccl };
/// Of a wish without problems.
Transport chosen_transport(const DeviceWish& wish, const DeviceFacts& facts);

}  // namespace tessera
