// --json - and --json /dev/stdout: the document alone on standard output, for scripts.
#pragma once

#include <string>
#include <vector>

namespace tessera {

/// While it lives, if one of the paths is standard output: all that is printed goes to standard error instead, and the
/// path names a descriptor that leads where standard output led. Otherwise it does nothing.
class StandardOutputForDocuments {
 public:
  explicit StandardOutputForDocuments(const std::vector<std::string*>& paths);
  ~StandardOutputForDocuments();
  StandardOutputForDocuments(const StandardOutputForDocuments&) = delete;
  StandardOutputForDocuments& operator=(const StandardOutputForDocuments&) = delete;

 private:
  int kept_ = -1;
};

}  // namespace tessera
