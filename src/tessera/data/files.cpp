#include "tessera/data/files.h"

#include <dirent.h>
#include <sys/stat.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>

#include "tessera/base/error.h"

namespace tessera::files {

std::int64_t file_bytes(const std::string& path) {
  struct stat found {};
  ensure(::stat(path.c_str(), &found) == 0, "no file '", path, "'");
  return static_cast<std::int64_t>(found.st_size);
}

std::vector<std::string> names_in(const std::string& folder) {
  const auto close = [](DIR* open) { ::closedir(open); };
  const std::unique_ptr<DIR, decltype(close)> open(::opendir(folder.c_str()), close);
  require(open != nullptr, "folder '", folder, "' cannot be read: ", std::strerror(errno));
  std::vector<std::string> names;
  while (const dirent* entry = ::readdir(open.get()))
    if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
  std::sort(names.begin(), names.end());
  return names;
}

std::string text_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(in), {}};
  require(in.good() || in.eof(), "file '", path, "' cannot be read");
  return text;
}

std::string path_in(const std::string& folder, const std::string& name) {
  if (name.starts_with('/')) return name;
  return folder.ends_with('/') ? folder + name : folder + '/' + name;
}

std::string folder_of(const std::string& path) {
  const auto slash = path.rfind('/');
  return slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

std::string ending_of(const std::string& name) {
  const auto dot = name.rfind('.');
  if (dot == std::string::npos) return "";
  std::string ending = name.substr(dot + 1);
  for (char& c : ending) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return ending;
}

std::string stem_of(const std::string& name) { return name.substr(0, name.rfind('.')); }

}  // namespace tessera::files
