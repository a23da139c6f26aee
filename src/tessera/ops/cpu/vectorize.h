// Loops over adjacent numbers are written plainly and left to the compiler's vectoriser. This makes it build them for
// the widest registers of the machine that runs them, while the rest of the program stays portable.
#pragma once

#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
// The sanitizers' run-time is not up yet when the loader picks a clone, hence their exception.
#define TESSERA_VECTORIZE __attribute__((optimize("O3"), target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#define TESSERA_WIDE_REGISTERS __builtin_cpu_supports("avx512bw")
#else
#define TESSERA_VECTORIZE
#define TESSERA_WIDE_REGISTERS false
#endif

namespace tessera {
/// Whether that makes it run with registers of 64 bytes on this machine.
inline bool wide_registers() { return TESSERA_WIDE_REGISTERS; }
}  // namespace tessera
