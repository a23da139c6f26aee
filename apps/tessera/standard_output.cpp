#include "standard_output.h"

#include <unistd.h>

#include <cstdio>

namespace tessera {

StandardOutputForDocuments::StandardOutputForDocuments(const std::vector<std::string*>& paths) {
  for (std::string* path : paths) {
    if (*path != "-" && *path != "/dev/stdout" && *path != "/dev/fd/1" && *path != "/proc/self/fd/1") continue;
    if (kept_ < 0) {
      std::fflush(stdout);
      kept_ = dup(STDOUT_FILENO);
      if (kept_ < 0 || dup2(STDERR_FILENO, STDOUT_FILENO) < 0) return;  // then writing the document says what is wrong
    }
    *path = "/dev/fd/" + std::to_string(kept_);
  }
}

StandardOutputForDocuments::~StandardOutputForDocuments() {
  if (kept_ < 0) return;
  std::fflush(stdout);
  dup2(kept_, STDOUT_FILENO);
  close(kept_);
}

}  // namespace tessera
