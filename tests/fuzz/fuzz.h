// A fuzz target is one function, fuzz(), given a file as an attacker would write it. It may throw Error and nothing
// else; whatever else goes wrong (a crash, a sanitizer's word, a broken promise) is a find.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "tessera/base/error.h"

namespace tessera {

void fuzz(std::string_view file);

inline void must(bool promise) {
  if (!promise) std::abort();
}

}  // namespace tessera

/// As libFuzzer and mutate.cpp call it.
extern "C" inline int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) __attribute__((used));
extern "C" inline int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    tessera::fuzz({reinterpret_cast<const char*>(data), size});
  } catch (const tessera::Error&) {
  }
  return 0;
}
