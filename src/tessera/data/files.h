// Files and folders of a data set, by POSIX calls: see base/paths.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/base/paths.h"

namespace tessera::files {

using tessera::is_file;
using tessera::is_folder;
/// Precondition: the file exists.
std::int64_t file_bytes(const std::string& path);
/// The names in a folder, sorted by bytes, without those that begin with a dot.
std::vector<std::string> names_in(const std::string& folder);
/// All bytes of a file. Throws UsageError that names it when it cannot be read.
std::string text_of(const std::string& path);

/// `name` seen from `folder`; an absolute name stays as it is.
std::string path_in(const std::string& folder, const std::string& name);
/// "a/b.png" -> "a", "b.png" -> ".".
std::string folder_of(const std::string& path);
/// "b.PNG" -> "png", "b" -> "".
std::string ending_of(const std::string& name);
/// "b.png" -> "b".
std::string stem_of(const std::string& name);

}  // namespace tessera::files
