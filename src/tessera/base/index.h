#pragma once

#include <cstddef>

namespace tessera {

/// Numbers of ranks, stages, nodes and values are ints; containers count otherwise.
inline std::size_t index(int i) { return static_cast<std::size_t>(i); }

}  // namespace tessera
