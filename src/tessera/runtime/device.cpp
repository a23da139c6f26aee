#include "tessera/runtime/device.h"

#include <ATen/Context.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "tessera/base/error.h"
#include "tessera/ops/gpu.h"

namespace tessera {

int gpu_count() {
  if (!gpu::built() || !c10::impl::hasDeviceGuardImpl(c10::DeviceType::CUDA)) return 0;
  return c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).deviceCount();
}

void use_device(c10::DeviceType device, int rank_on_machine) {
  if (device == c10::DeviceType::CPU) return;
  const int count = gpu_count();
  require(count > 0, "there is no GPU for rank ", rank_on_machine, " of this machine; use --device cpu");
  c10::impl::VirtualGuardImpl(device).setDevice(
      c10::Device(device, static_cast<c10::DeviceIndex>(rank_on_machine % count)));
}

void configure_gpus(const GpuSettings& settings) {
  at::Context& context = at::globalContext();
  context.setBenchmarkCuDNN(settings.try_algorithms);
  context.setAllowTF32CuDNN(settings.tf32);
  context.setAllowTF32CuBLAS(settings.tf32);
}

}  // namespace tessera
