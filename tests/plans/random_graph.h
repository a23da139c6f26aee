// Small networks of all operations that there are, by number.
#pragma once

#include <string>
#include <vector>

#include "tessera/models/registry.h"

namespace tessera::plans {

/// The network of a seed (--depth) with so many operations before its head (--num-layers). One with fewer operations is
/// the beginning of one with more, so that a network can be shrunk.
Graph random_graph(const ModelOptions& options);

/// The operations that random graphs are made of.
std::vector<std::string> random_words();

/// The built-in networks, and "random".
ModelRegistry models_with_random();

}  // namespace tessera::plans
