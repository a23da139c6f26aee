#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <fmt/core.h>
#include <torch/version.h>

#include "commands.h"
#include "tessera/comm/mpi/mpi_communicator.h"
#include "tessera/comm/nccl/nccl_communicator.h"
#include "tessera/data/vips_images.h"
#include "tessera/io/report.h"
#include "tessera/ops/cuda/gpu.h"
#include "tessera/runtime/device.h"

namespace tessera {

std::string version_text() {
  const BuildInfo build = build_info();
  return fmt::format(
      "tessera {} ({})\n"
      "compiler   {}\n"
      "libtorch   {}\n"
      "MPI        {}\n"
      "libvips    {}\n"
      "CUDA       {}\n"
      "NCCL       {}\n"
      "sanitizers {}\n",
      build.version, build.commit, build.compiler, TORCH_VERSION, mpi_library_version(),
      has_vips() ? vips_version() : "no: image files cannot be read",
      !gpu::built() ? std::string("no: --device cuda is refused") : fmt::format("yes, {} GPUs visible", gpu_count()),
      nccl_built() ? nccl_version() : "no: --transport nccl is refused",
      build.sanitizers.empty() ? "none" : build.sanitizers);
}

}  // namespace tessera
