// A folder for the files of one test, by POSIX calls: see tessera/data/files.h on std::filesystem.
#pragma once

#include <ftw.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <stdexcept>
#include <string>

namespace tessera {

class TempFolder {
 public:
  TempFolder() {
    const char* place = ::getenv("TMPDIR");
    path_ = std::string(place ? place : "/tmp") + "/tessera_data_XXXXXX";
    if (!::mkdtemp(path_.data())) throw std::runtime_error("cannot make " + path_);
  }
  ~TempFolder() { remove_all(path_); }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

  /// Makes the folders above it, too.
  std::string folder(const std::string& name) const {
    for (std::size_t slash = 0; slash != std::string::npos;) {
      slash = name.find('/', slash + 1);
      ::mkdir((*this / name.substr(0, slash)).c_str(), 0777);
    }
    return *this / name;
  }
  std::string write(const std::string& name, const std::string& bytes) const {
    if (const auto slash = name.rfind('/'); slash != std::string::npos) folder(name.substr(0, slash));
    std::ofstream(*this / name, std::ios::binary) << bytes;
    return *this / name;
  }
  void cut(const std::string& name, std::int64_t bytes) const {
    if (::truncate((*this / name).c_str(), bytes) != 0) throw std::runtime_error("cannot cut " + name);
  }
  void remove(const std::string& name) const { remove_all(*this / name); }

 private:
  static void remove_all(const std::string& path) {
    const auto remove_one = [](const char* found, const struct stat*, int, FTW*) { return ::remove(found); };
    ::nftw(path.c_str(), remove_one, 16, FTW_DEPTH | FTW_PHYS);
  }
  std::string path_;
};

}  // namespace tessera
