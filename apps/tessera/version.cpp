#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <fmt/core.h>
#include <torch/version.h>

#include <cstdlib>

#include "commands.h"
#include "tessera/base/instruction_set.h"
#include "tessera/comm/mpi/mpi_communicator.h"
#include "tessera/comm/nccl/nccl_communicator.h"
#include "tessera/data/vips_images.h"
#include "tessera/io/report.h"
#include "tessera/ops/cuda/gpu.h"
#include "tessera/ops/way_choices.h"
#include "tessera/runtime/cores.h"
#include "tessera/runtime/device.h"

namespace tessera {

namespace {

// ATen has no function for it that is exported everywhere, but a line in the description of itself.
std::string aten_capability() {
  constexpr std::string_view words = "CPU capability usage: ";
  const std::string all = at::show_config();
  const std::size_t at = all.find(words);
  if (at == std::string::npos) return "as it likes";
  const std::size_t begin = at + words.size();
  return all.substr(begin, all.find('\n', begin) - begin);
}

// What computes, and what was asked for where that is less than the machine has.
std::string cpu_words() {
  const InstructionSet used = instruction_set(), machine = machine_instruction_set();
  std::string words = fmt::format("{}; ATen {}", to_string(used), aten_capability());
  if (used != machine) words += fmt::format("; limited by TESSERA_CPU, the machine has {}", to_string(machine));
  if (const std::string limits = library_limits(); !limits.empty()) words += fmt::format(" ({})", limits);
  return words;
}

// How convolutions are chosen where --conv-choice does not say.
std::string choice_words() {
  const char* const asked = std::getenv("TESSERA_WAYS");
  const WayChoices& ways = WayChoices::of_process();
  if (asked && *asked && ways.how() != "measured") return fmt::format("{}, by TESSERA_WAYS", ways.how());
  return fmt::format("measured, kept in {}",
                     ways.path().empty() ? "no file: neither HOME nor XDG_CACHE_HOME is set" : ways.path());
}

}  // namespace

std::string version_text() {
  const BuildInfo build = build_info();
  return fmt::format(
      "tessera {} ({})\n"
      "compiler   {}\n"
      "CPU        {}\n"
      "conv       {}\n"
      "libtorch   {}\n"
      "MPI        {}\n"
      "libvips    {}\n"
      "CUDA       {}\n"
      "NCCL       {}\n"
      "hwloc      {}\n"
      "sanitizers {}\n",
      build.version, build.commit, build.compiler, cpu_words(), choice_words(), TORCH_VERSION, mpi_library_version(),
      has_vips() ? vips_version() : "no: of image files, .npy alone can be read",
      !gpu::built() ? std::string("no: --device cuda is refused") : fmt::format("yes, {} GPUs visible", gpu_count()),
      nccl_built() ? nccl_version() : "no: --transport nccl is refused", hwloc_version(),
      build.sanitizers.empty() ? "none" : build.sanitizers);
}

}  // namespace tessera
