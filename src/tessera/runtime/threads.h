// How many threads a rank computes with.
#pragma once

namespace tessera {

/// For the calling thread, which is a rank: all of torch's loops, oneDNN and OpenBLAS keep to it. OpenBLAS has one pool
/// a process, in which ranks that are threads would wait for each other, so it stays on the caller's thread when
/// `ranks_in_process` is more than one.
void use_threads(int threads, int ranks_in_process);

/// What OMP_THREAD_LIMIT allows a rank. With more, oneDNN would wait for ever for threads that it does not get.
int most_threads();

}  // namespace tessera
