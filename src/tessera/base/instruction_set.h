// Which vector instructions the program uses. The machine's best by default; the environment variable TESSERA_CPU
// (avx512, avx2, portable) limits it, so that all kinds can be tested and measured on one machine.
#pragma once

#include <string>
#include <string_view>

namespace tessera {

/// From the shortest vectors to the longest. `portable` is what every processor of the architecture has.
enum class InstructionSet { portable, avx2, avx512 };

std::string_view to_string(InstructionSet set);

/// The best one that this machine has.
InstructionSet machine_instruction_set();

/// What Tessera's own kernels use: the machine's, or less where TESSERA_CPU says so. Settled at the first call. Throws
/// UsageError if the variable's value means nothing.
InstructionSet instruction_set();

/// Passes the limit on to oneDNN, ATen and OpenBLAS. They read it from the environment when they are loaded, before
/// main(), so the program starts itself again, once. To be called first in main(); does nothing without TESSERA_CPU.
void limit_libraries(char** argv);

/// The limits that the libraries see, "ONEDNN_MAX_CPU_ISA=AVX2 ..."; empty: none.
std::string library_limits();

}  // namespace tessera
