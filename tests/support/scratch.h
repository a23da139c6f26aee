// A folder of a test's own, and disks that are full on demand.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include <string>

#include "tessera/base/error.h"
#include "tessera/io/file.h"

namespace tessera::test {

class Scratch {
 public:
  Scratch() {
    char name[] = "/tmp/tessera_test_XXXXXX";
    if (mkdtemp(name) == nullptr) throw Error("no scratch folder");
    folder_ = name;
  }
  ~Scratch() { remove_folder(folder_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  const std::string& folder() const { return folder_; }

 private:
  std::string folder_;
};

class ScratchFolder : public testing::Test {
 protected:
  std::string path(const std::string& name) const { return join_path(scratch_.folder(), name); }

 private:
  Scratch scratch_;
};

/// While it lives, no file of this process grows beyond `bytes`.
class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes) : handler_(signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit now{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &now);
  }
  ~FullDisk() {
    setrlimit(RLIMIT_FSIZE, &before_);
    signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_;
  sighandler_t handler_;
};

/// Runs it, and returns what its Error says; a failed test if there is none.
template <class F>
std::string error_of(const F& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  ADD_FAILURE() << "no Error was thrown";
  return "";
}

inline void flip_byte(const std::string& path, std::int64_t at) {
  std::string bytes = read_text(path);
  bytes.at(static_cast<std::size_t>(at)) ^= 0x10;
  write_text(path, bytes);
}

inline void cut(const std::string& path, std::int64_t bytes) {
  ASSERT_EQ(truncate(path.c_str(), InputFile(path).size() - bytes), 0);
}

}  // namespace tessera::test
