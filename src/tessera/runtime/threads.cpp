#include "tessera/runtime/threads.h"

#include <ATen/Parallel.h>
#include <dlfcn.h>

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

}  // namespace tessera
