// Own kernels in the vectors of the machine. The sources of this folder are compiled once for every instruction set,
// with its flags, each time into a namespace of that name; each ends in a table of functions, and which table is used
// is settled when the program runs:
//
//     pools.cpp  --(plain)-----------> portable::pool_kernels --+
//                --(-mavx2 -mfma)----> avx2::pool_kernels ------+--> pool_kernels()
//                --(-mavx512f ...)---> avx512::pool_kernels ----+
//
// What such a source emits must be its own. An inline function of the standard library, say, that was compiled with
// AVX-512 here may be the copy that the linker keeps for all, and other machines would stop at it. So these sources
// include little, inline by force, and tests/cli/isa_symbols.sh looks through their symbols.
#pragma once

#include "tessera/base/instruction_set.h"

#if defined(__x86_64__)
#define TESSERA_ISA_TABLE(Type, name)                                 \
  namespace portable {                                                \
  extern const Type name;                                             \
  }                                                                   \
  namespace avx2 {                                                    \
  extern const Type name;                                             \
  }                                                                   \
  namespace avx512 {                                                  \
  extern const Type name;                                             \
  }                                                                   \
  inline const Type& name() {                                         \
    const InstructionSet set = instruction_set();                     \
    if (set == InstructionSet::avx512) return avx512::name;           \
    return set == InstructionSet::avx2 ? avx2::name : portable::name; \
  }
#else
#define TESSERA_ISA_TABLE(Type, name) \
  namespace portable {                \
  extern const Type name;             \
  }                                   \
  inline const Type& name() { return portable::name; }
#endif
