# Everything Tessera stands on, found once and said at configure time.
find_package(Threads REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(Torch REQUIRED)
find_package(MPI REQUIRED COMPONENTS C)
find_package(fmt REQUIRED)
find_package(CLI11 REQUIRED)
find_package(nlohmann_json REQUIRED)

# Optional: without libvips, image files cannot be read (a stub takes the decoder's place).
option(TESSERA_VIPS "Read image files with libvips, where it is installed" ON)
set(TESSERA_HAS_VIPS OFF)
set(TESSERA_VIPS_WORDS "no libvips (no image files; install libvips-dev)")
if(TESSERA_VIPS)
  find_package(PkgConfig QUIET)
  if(PkgConfig_FOUND)
    pkg_check_modules(VIPS QUIET vips>=8.13)
    set(TESSERA_HAS_VIPS ${VIPS_FOUND})
  endif()
endif()
if(TESSERA_HAS_VIPS)
  set(TESSERA_VIPS_WORDS "libvips ${VIPS_VERSION}")
endif()

# Optional: without hwloc, a machine is one NUMA node (a stub takes its place).
find_path(HWLOC_INCLUDE_DIR hwloc.h)
find_library(HWLOC_LIBRARY hwloc)
set(TESSERA_HAS_HWLOC OFF)
set(TESSERA_HWLOC_WORDS "no hwloc")
if(HWLOC_INCLUDE_DIR AND HWLOC_LIBRARY)
  set(TESSERA_HAS_HWLOC ON)
  set(TESSERA_HWLOC_LIBRARY ${HWLOC_LIBRARY})
  set(TESSERA_HWLOC_WORDS "hwloc")
endif()

# Optional: with a torch that has CUDA and a CUDA compiler, --device cuda (stubs take the kernels' place otherwise).
option(TESSERA_CUDA "Run on GPUs, where torch has CUDA and there is a CUDA compiler" ON)
set(TESSERA_HAS_CUDA OFF)
set(TESSERA_CUDA_WORDS "no CUDA")
if(TESSERA_CUDA AND TARGET torch_cuda)
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)  # the one that torch uses
    enable_language(CUDA)
    # Torch's package adds flags for the GPUs that it finds, or for TORCH_CUDA_ARCH_LIST.
    if(NOT CMAKE_CUDA_FLAGS MATCHES "gencode" AND NOT CMAKE_CUDA_ARCHITECTURES)
      set(CMAKE_CUDA_ARCHITECTURES 80 90)
    endif()
    find_package(CUDAToolkit REQUIRED)
    set(CMAKE_CUDA_STANDARD 20)
    set(CMAKE_CUDA_STANDARD_REQUIRED ON)
    set(TESSERA_HAS_CUDA ON)
    set(TESSERA_CUDA_LIBRARIES CUDA::cudart)
    set(TESSERA_CUDA_WORDS "CUDA ${CMAKE_CUDA_COMPILER_VERSION}")
  endif()
endif()

# Optional: with NCCL, messages and sums of several processes go from GPU to GPU. Torch's packages often carry it.
option(TESSERA_NCCL "Talk from GPU to GPU with NCCL, where it is installed" ON)
set(TESSERA_HAS_NCCL OFF)
set(TESSERA_NCCL_WORDS "no NCCL")
if(TESSERA_HAS_CUDA AND TESSERA_NCCL)
  set(places ENV NCCL_ROOT ${TORCH_INSTALL_PREFIX}/../nvidia/nccl ${CUDAToolkit_ROOT_DIR})
  find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${places} PATH_SUFFIXES include)
  find_library(NCCL_LIBRARY NAMES nccl libnccl.so.2 HINTS ${places} PATH_SUFFIXES lib lib64)
  if(NCCL_INCLUDE_DIR AND NCCL_LIBRARY)
    set(TESSERA_HAS_NCCL ON)
    set(TESSERA_NCCL_LIBRARY ${NCCL_LIBRARY})
    set(TESSERA_NCCL_WORDS "NCCL in ${NCCL_LIBRARY}")
  endif()
endif()

# Whether the MPI library can be asked if it reads GPU memory; what it answers is for the run.
include(CheckCXXSourceCompiles)
set(CMAKE_REQUIRED_LIBRARIES MPI::MPI_C)
set(CMAKE_REQUIRED_DEFINITIONS -DOMPI_SKIP_MPICXX -DMPICH_SKIP_MPICXX)
check_cxx_source_compiles("
#include <mpi.h>
#if __has_include(<mpi-ext.h>)
#include <mpi-ext.h>
#endif
int main() { return MPIX_Query_cuda_support(); }" TESSERA_MPI_KNOWS_GPUS)
unset(CMAKE_REQUIRED_LIBRARIES)
unset(CMAKE_REQUIRED_DEFINITIONS)

# The compiled {fmt} saves every source a few seconds; but some packages of torch bring headers of another version.
set(CMAKE_REQUIRED_INCLUDES ${TORCH_INCLUDE_DIRS})
set(CMAKE_REQUIRED_LIBRARIES fmt::fmt)
check_cxx_source_compiles("
#include <fmt/format.h>
int main() { fmt::print(\"{}\", fmt::format(\"{:.3f}\", 1.0)); }" TESSERA_FMT_LINKS)
unset(CMAKE_REQUIRED_INCLUDES)
unset(CMAKE_REQUIRED_LIBRARIES)
if(TESSERA_FMT_LINKS)
  set(TESSERA_FMT fmt::fmt)
else()
  set(TESSERA_FMT fmt::fmt-header-only)
endif()

# Torch's own target carries language flags and CUDA paths; the C++ standard stays ours.
add_library(tessera_torch INTERFACE)
# at::parallel_for is a template on OpenMP: without the flag it runs on one thread, silently.
target_link_libraries(tessera_torch INTERFACE ${TORCH_LIBRARIES} OpenMP::OpenMP_CXX)
target_include_directories(tessera_torch SYSTEM INTERFACE ${TORCH_INCLUDE_DIRS})
target_compile_definitions(tessera_torch INTERFACE AT_PER_OPERATOR_HEADERS)
separate_arguments(TORCH_FLAGS UNIX_COMMAND "${TORCH_CXX_FLAGS}")
target_compile_options(tessera_torch INTERFACE ${TORCH_FLAGS})

message(STATUS "Tessera: torch ${Torch_VERSION}, MPI ${MPI_C_VERSION}, fmt ${fmt_VERSION}, ${TESSERA_CUDA_WORDS}, ${TESSERA_NCCL_WORDS}, ${TESSERA_VIPS_WORDS}, ${TESSERA_HWLOC_WORDS}, sanitizers '${TESSERA_SANITIZE}'")
