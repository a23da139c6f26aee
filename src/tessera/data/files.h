// Files and folders by POSIX calls. Not std::filesystem: the libtorch of pip's packages exports a copy of its own of
// that part of the C++ library (pytorch issue 133437), and a program that links it calls the wrong one and crashes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::files {

bool is_folder(const std::string& path);
bool is_file(const std::string& path);
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
