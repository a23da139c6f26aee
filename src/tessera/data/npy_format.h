// The head of a file of numpy.save(): what an array is.
// https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

struct NpyHeader {
  std::string type;  ///< numpy's: "|u1", "<u2", ...
  bool fortran_order = false;
  std::vector<std::int64_t> shape;
  std::int64_t data = 0;  ///< where the numbers begin in the file

  std::int64_t elements() const;
};

/// How many bytes of a file parse_npy() wants to see, at most.
constexpr std::int64_t npy_header_limit = 65536;

/// `bytes`: the beginning of a file. Throws Error, which does not name the file.
NpyHeader parse_npy(const std::string& bytes);

}  // namespace tessera
