// The bytes of numpy.save().
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "tessera/base/error.h"

namespace tessera {

inline std::string npy(const std::string& type, const std::string& shape, const std::string& data,
                       const std::string& order = "False") {
  std::string head = concat("{'descr': '", type, "', 'fortran_order': ", order, ", 'shape': ", shape, ", }");
  head.append(64 - (10 + head.size() + 1) % 64, ' ');
  head += '\n';
  return concat("\x93NUMPY", std::string("\1\0", 2), static_cast<char>(head.size() % 256),
                static_cast<char>(head.size() / 256), head, data);
}

// 0, 1, 2, ... as bytes, or as numbers of two bytes whose upper one it is.
inline std::string counting(int numbers, int bytes = 1) {
  std::string out;
  for (int i = 0; i < numbers; ++i) {
    if (bytes == 2) out += '\x7f';
    out += static_cast<char>(i);
  }
  return out;
}

template <class Number>
std::string bytes_of_all(const std::vector<Number>& numbers) {
  std::string out(numbers.size() * sizeof(Number), '\0');
  std::memcpy(out.data(), numbers.data(), out.size());
  return out;
}

}  // namespace tessera
