#include "tessera/runtime/device.h"

#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "tessera/base/error.h"
#include "tessera/comm/nccl/nccl_communicator.h"
#include "tessera/ops/cuda/gpu.h"

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

DeviceFacts device_facts(const DeviceWish& wish, Communicator* world, int rank_on_machine) {
  DeviceFacts facts{.cuda_built = gpu::built(), .nccl_built = nccl_built(), .ranks_are_processes = world != nullptr};
  if (!wish.cuda || !facts.cuda_built) return facts;
  // What each rank tells: which GPU it has, whether that has bfloat16, and whether there is one.
  constexpr std::int64_t id_bytes = 16, bytes = id_bytes + 2;
  at::Tensor mine = at::zeros({bytes}, at::kByte);
  auto* told = mine.data_ptr<std::uint8_t>();
  if (gpu_count() > 0) {
    use_device(c10::DeviceType::CUDA, rank_on_machine);
    const auto id = gpu::identity();
    std::memcpy(told, id.data(), id.size());
    told[id_bytes] = gpu::has_bfloat16();
    told[id_bytes + 1] = 1;
  }
  at::Tensor all = at::empty({world ? world->size() : 1, bytes}, at::kByte);
  if (world)
    world->all_gather(mine, all).wait();
  else
    all.copy_(mine.unsqueeze(0));
  facts.bfloat16 = true;
  std::set<std::string> ids;
  for (std::int64_t r = 0; r < all.size(0); ++r) {
    const auto* row = all.data_ptr<std::uint8_t>() + r * bytes;
    facts.bfloat16 = facts.bfloat16 && row[id_bytes] != 0;
    if (row[id_bytes + 1] == 0 && facts.rank_without_gpu < 0) facts.rank_without_gpu = static_cast<int>(r);
    ids.emplace(reinterpret_cast<const char*>(row), id_bytes);
  }
  facts.own_gpus = world != nullptr && static_cast<std::int64_t>(ids.size()) == all.size(0);
  return facts;
}

std::vector<std::string> device_problems(const DeviceWish& wish, const DeviceFacts& facts) {
  std::vector<std::string> problems;
  const auto add = [&](const auto&... parts) { problems.push_back(concat(parts...)); };
  const bool nccl = wish.transport == "nccl";
  if (!wish.cuda) {
    if (wish.bfloat16) add("--dtype bfloat16 is for GPUs; use --device cuda, or --dtype float32");
    if (wish.tf32) add("--tf32 is for GPUs; use --device cuda, or leave it out");
    if (nccl) add("--transport nccl is for GPUs; use --device cuda, or --transport auto");
    return problems;
  }
  if (!facts.cuda_built) {
    add("--device cuda: this program was built without CUDA; use --device cpu, or build with the preset cuda ",
        "(docs/gpu.md)");
    return problems;
  }
  if (facts.rank_without_gpu >= 0) {
    add("--device cuda: no GPU is visible",
        facts.ranks_are_processes ? concat(" to rank ", facts.rank_without_gpu) : std::string(),
        "; see nvidia-smi and CUDA_VISIBLE_DEVICES, or use --device cpu");
    return problems;
  }
  if (wish.bfloat16 && !facts.bfloat16)
    add("--dtype bfloat16: this GPU does not compute in it (it takes compute capability 8.0); use --dtype float32");
  if (nccl && !facts.nccl_built)
    add("--transport nccl: this program was built without NCCL; use --transport mpi, or build where nccl.h and ",
        "libnccl are found (docs/gpu.md)");
  else if (nccl && !facts.ranks_are_processes)
    add("--transport nccl: these ranks are threads of one process; start processes with mpirun -np, or use ",
        "--transport auto");
  else if (nccl && !facts.own_gpus)
    add("--transport nccl: ranks share a GPU, which NCCL does not allow; start as many ranks as there are GPUs, or "
        "use ",
        "--transport mpi");
  return problems;
}

Transport chosen_transport(const DeviceWish& wish, const DeviceFacts& facts) {
  const bool possible = wish.cuda && facts.nccl_built && facts.ranks_are_processes && facts.own_gpus;
  return possible && wish.transport != "mpi" ? Transport::nccl : Transport::mpi;
}

}  // namespace tessera
