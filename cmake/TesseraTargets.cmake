# tessera_room(NAME USES room...): one static library for each room of src/tessera. A room names the rooms that it may
# include; tests/cli/rooms.sh holds the sources to that.
function(tessera_room name)
  cmake_parse_arguments(ARG "" "READS" "SOURCES;USES;LIBRARIES" ${ARGN})
  set(target tessera_${name})
  if(ARG_SOURCES)
    add_library(${target} STATIC ${ARG_SOURCES})
    set(scope PUBLIC)
  else()
    add_library(${target} INTERFACE)
    set(scope INTERFACE)
  endif()
  target_include_directories(${target} ${scope}
    $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/src> $<INSTALL_INTERFACE:include>)
  list(TRANSFORM ARG_USES PREPEND tessera_)
  target_link_libraries(${target} ${scope} ${ARG_USES} ${ARG_LIBRARIES})
  if(ARG_READS)
    tessera_reads(${target} ${ARG_READS})
  endif()
  set_property(GLOBAL APPEND PROPERTY TESSERA_ROOMS ${target})
endfunction()

# Headers that many sources read, compiled once. Sources include what they use all the same: without precompiled headers
# (-DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON) everything builds, only slower.
#   tessera_precompile(NAME LIBRARIES... HEADERS...)   makes a set; targets take it with tessera_reads(TARGET NAME).
# Both must be compiled with the same OPTIONS.
function(tessera_precompile name)
  cmake_parse_arguments(ARG "" "" "LIBRARIES;HEADERS;OPTIONS" ${ARGN})
  file(WRITE ${CMAKE_BINARY_DIR}/precompiled/${name}.cpp "")
  add_library(${name} OBJECT ${CMAKE_BINARY_DIR}/precompiled/${name}.cpp)
  target_link_libraries(${name} PRIVATE ${ARG_LIBRARIES})
  target_compile_options(${name} PRIVATE ${ARG_OPTIONS})
  target_precompile_headers(${name} PRIVATE ${ARG_HEADERS})
endfunction()
function(tessera_reads target name)
  target_precompile_headers(${target} REUSE_FROM ${name})
endfunction()

# Against hanging only: a busy machine is no failure.
set(TESSERA_TEST_TIMEOUT 900)
if(TESSERA_SANITIZE)
  set(TESSERA_TEST_TIMEOUT 3600)
endif()

# A test's own code is compiled more often than it is run; what it tests is optimised. -fPIE is how CMake compiles programs:
# the headers that they read must be compiled so, too. And with torch's definitions, whether a test knows torch or not.
set(TESSERA_TEST_OPTIONS -O0 -fPIE ${TORCH_FLAGS} ${OpenMP_CXX_FLAGS})

# What the sanitizers run (make sanitize): what can show them something new, so that it ends within an hour or two.
# - Neither: several hosts, kills and other faults from outside (what dies has nothing more to say), memory as predicted
#   (theirs is another), the golden tables once more for each instruction set, code outside of the tree, browsers, and fuzz
#   targets, which have sanitizers of their own.
# - TESSERA_SANITIZES_THREADS, that of threads: it sees one process and is ten times slower. So programs whose ranks are
#   threads, without the rooms that have no threads, without kernels by themselves (one thread computes them there), and
#   without those that only start other programs (mpirun, the command line's, Python's); and of long tests what
#   tessera_test names in RACES: what has threads, and of the golden tables small rows of every kind of plan, because what
#   ranks do to each other depends on the plan and not on network or size.
set(TESSERA_SANITIZES_THREADS OFF)
set(TESSERA_NOT_SANITIZED hosts fuzz)
if(TESSERA_SANITIZE MATCHES "thread")
  set(TESSERA_SANITIZES_THREADS ON)
  list(APPEND TESSERA_NOT_SANITIZED base geometry graph models program plan schedule ops report mpi python)
endif()

# tessera_test(NAME SOURCES... USES room...): a GoogleTest program, run as one ctest test, on thread ranks.
function(tessera_test name)
  cmake_parse_arguments(ARG "" "READS;RACES" "SOURCES;USES;LIBRARIES" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  list(TRANSFORM ARG_USES PREPEND tessera_)
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/tests)
  target_compile_options(${name} PRIVATE ${TESSERA_TEST_OPTIONS})
  target_link_libraries(${name} PRIVATE ${ARG_USES} ${ARG_LIBRARIES} GTest::gtest_main GTest::gmock)
  if(ARG_READS)
    tessera_reads(${name} ${ARG_READS})
  endif()
  set(rows "")
  if(TESSERA_SANITIZES_THREADS AND ARG_RACES)
    set(rows --gtest_filter=${ARG_RACES})
  endif()
  add_test(NAME ${name} COMMAND ${name} ${rows})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${TESSERA_TEST_TIMEOUT})
endfunction()

# tessera_mpi_test(NAME TARGET t RANKS n): runs an already built test program under mpirun. On small machines ranks
# outnumber cores, and containers run as root: both are for the tests to allow, not for the user to know.
function(tessera_mpi_test name)
  if(TESSERA_SANITIZES_THREADS)
    return()
  endif()
  cmake_parse_arguments(ARG "" "TARGET;RANKS" "ARGS" ${ARGN})
  add_test(NAME ${name} COMMAND ${MPIEXEC_EXECUTABLE} -np ${ARG_RANKS} $<TARGET_FILE:${ARG_TARGET}> ${ARG_ARGS})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${TESSERA_TEST_TIMEOUT} ENVIRONMENT
    "OMPI_ALLOW_RUN_AS_ROOT=1;OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1;OMPI_MCA_rmaps_base_oversubscribe=1;OMPI_MCA_mpi_yield_when_idle=1;OMP_NUM_THREADS=1;ASAN_OPTIONS=detect_leaks=0")
endfunction()

# How libraries are told to do with a lesser instruction set.
set(TESSERA_LIBRARIES_avx2 ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2 OPENBLAS_CORETYPE=Haswell)
set(TESSERA_LIBRARIES_portable ONEDNN_MAX_CPU_ISA=SSE41 ATEN_CPU_CAPABILITY=default OPENBLAS_CORETYPE=Nehalem)

# tessera_isa_tests(NAME ARGS...): runs an already added test once more for each lesser instruction set
# (base/instruction_set.h), libraries included. A machine that has no more itself runs the same test again.
function(tessera_isa_tests name)
  if(TESSERA_SANITIZES_THREADS)
    return()
  endif()
  get_test_property(${name} ENVIRONMENT before)
  if(NOT before)
    set(before "")
  endif()
  foreach(isa avx2 portable)
    add_test(NAME ${name}_${isa} COMMAND ${name} ${ARGN})
    set_tests_properties(${name}_${isa} PROPERTIES TIMEOUT ${TESSERA_TEST_TIMEOUT}
      ENVIRONMENT "TESSERA_CPU=${isa};${TESSERA_LIBRARIES_${isa}};${before}")
  endforeach()
endfunction()
