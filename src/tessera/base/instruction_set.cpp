#include "tessera/base/instruction_set.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>

#include "tessera/base/error.h"

namespace tessera {
namespace {

constexpr const char* variable = "TESSERA_CPU";

#if defined(__x86_64__)
bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#else
bool has_avx2() { return false; }
bool has_avx512() { return false; }
#endif

InstructionSet asked_for() {
  const InstructionSet machine = machine_instruction_set();
  const char* const value = std::getenv(variable);
  if (!value || !*value) return machine;
  for (const auto set : {InstructionSet::portable, InstructionSet::avx2, InstructionSet::avx512})
    if (value == to_string(set)) return std::min(set, machine);
  throw UsageError(concat(variable, "=", value, " is not an instruction set; use avx512, avx2 or portable"));
}

struct Setting {
  const char *name, *value;
};

// Not MKL's: it has no word for "as on any machine", and Debian's libtorch is without it.
std::array<Setting, 4> settings(InstructionSet set) {
  // ATen's names are old: its "default" is what the compiler was told. oneDNN took its new name with version 2.
  const bool avx2 = set == InstructionSet::avx2;
  return {{{"ONEDNN_MAX_CPU_ISA", avx2 ? "AVX2" : "SSE41"},
           {"DNNL_MAX_CPU_ISA", avx2 ? "AVX2" : "SSE41"},
           {"ATEN_CPU_CAPABILITY", avx2 ? "avx2" : "default"},
           {"OPENBLAS_CORETYPE", avx2 ? "Haswell" : "Nehalem"}}};
}

}  // namespace

std::string_view to_string(InstructionSet set) {
  switch (set) {
    case InstructionSet::portable:
      return "portable";
    case InstructionSet::avx2:
      return "avx2";
    case InstructionSet::avx512:
      return "avx512";
  }
  return {};
}

InstructionSet machine_instruction_set() {
  return has_avx512() ? InstructionSet::avx512 : has_avx2() ? InstructionSet::avx2 : InstructionSet::portable;
}

InstructionSet instruction_set() {
  static const InstructionSet set = asked_for();
  return set;
}

void limit_libraries(char** argv) {
  const char* const value = std::getenv(variable);
  if (!value || !*value) return;
  const InstructionSet set = instruction_set();
  if (set == machine_instruction_set()) return;
  bool changed = false;
  for (const auto& [name, wanted] : settings(set)) {
    const char* const now = std::getenv(name);
    if (now && std::string_view(now) == wanted) continue;
    setenv(name, wanted, 1);
    changed = true;
  }
  if (!changed) return;
  execv("/proc/self/exe", argv);
  throw Error(concat(variable, "=", value, ": the program could not start itself again"));
}

std::string library_limits() {
  std::string out;
  for (const auto& setting : settings(InstructionSet::avx2))
    if (const char* const value = std::getenv(setting.name))
      out += concat(out.empty() ? "" : " ", setting.name, "=", value);
  return out;
}

}  // namespace tessera
