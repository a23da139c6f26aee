// Stands in for gpu_memory.cpp where CUDA was not found.
#include "tessera/runtime/memory.h"

namespace tessera {

void count_gpu_memory() {}
std::int64_t peak_gpu_bytes() { return 0; }
void reset_peak_gpu_bytes() {}
double free_gpu_bytes() { return 0; }

}  // namespace tessera
