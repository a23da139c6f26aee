# Everything Tessera stands on, found once and said at configure time.
find_package(Threads REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(Torch REQUIRED)
find_package(MPI REQUIRED COMPONENTS C)
find_package(fmt REQUIRED)
find_package(CLI11 REQUIRED)
find_package(nlohmann_json REQUIRED)

# Torch's own target carries language flags and CUDA paths; the C++ standard stays ours.
add_library(tessera_torch INTERFACE)
# at::parallel_for is a template on OpenMP: without the flag it runs on one thread, silently.
target_link_libraries(tessera_torch INTERFACE ${TORCH_LIBRARIES} OpenMP::OpenMP_CXX)
target_include_directories(tessera_torch SYSTEM INTERFACE ${TORCH_INCLUDE_DIRS})
target_compile_definitions(tessera_torch INTERFACE AT_PER_OPERATOR_HEADERS)
separate_arguments(TORCH_FLAGS UNIX_COMMAND "${TORCH_CXX_FLAGS}")
target_compile_options(tessera_torch INTERFACE ${TORCH_FLAGS})

message(STATUS "Tessera: torch ${Torch_VERSION}, MPI ${MPI_C_VERSION}, fmt ${fmt_VERSION}, sanitizers '${TESSERA_SANITIZE}'")
