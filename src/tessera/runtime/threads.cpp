#include "tessera/runtime/threads.h"

#include <ATen/Parallel.h>
#include <dlfcn.h>

#include <limits>

namespace tessera {

void use_threads(int threads, int ranks_in_process) {
  // A thread that first asks torch for its number gets the one that any thread has set last. So it asks now, not later.
  at::get_num_threads();
  at::set_num_threads(threads);
  // Torch may stand on another BLAS, which then knows no such function.
  using SetThreads = void (*)(int);
  if (const auto set = reinterpret_cast<SetThreads>(dlsym(RTLD_DEFAULT, "openblas_set_num_threads")))
    set(ranks_in_process > 1 ? 1 : threads);
}

int most_threads() {
  // Torch may compute without OpenMP.
  using ThreadLimit = int (*)();
  const auto limit = reinterpret_cast<ThreadLimit>(dlsym(RTLD_DEFAULT, "omp_get_thread_limit"));
  return limit ? limit() : std::numeric_limits<int>::max();
}

}  // namespace tessera
