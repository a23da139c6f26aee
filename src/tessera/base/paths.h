// What is there under a path. By POSIX calls, not std::filesystem: the libtorch of pip's packages exports a copy of its
// own of that part of the C++ library (pytorch issue 133437), and a program that links it calls the wrong one and
// crashes.
#pragma once

#include <string>

namespace tessera {

bool is_folder(const std::string& path);
bool is_file(const std::string& path);

}  // namespace tessera
