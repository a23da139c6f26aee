// Random plans, as the flags that a user would write.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tessera/models/registry.h"

namespace tessera::plans {

/// Flags and their values; a flag without one has an empty value. "--grid" -> "2x2".
using Flags = std::map<std::string, std::string>;

struct DrawOptions {
  std::int64_t max_ranks = 12;
  /// Networks of PyTorch to draw now and then: names of files that the registry reads.
  std::vector<std::string> files = {};
};

/// Plan `number` of a seed: the same wherever it is drawn, and whatever was drawn before. Most of them can be run; some
/// will be refused, because what fits what is for the planner to say, not for this file.
Flags draw_plan(std::uint64_t seed, std::int64_t number, const DrawOptions& options, const ModelRegistry& models);

/// "--grid 2x2 --parts 4".
std::string command_line(const Flags& flags);
std::vector<std::string> arguments(const Flags& flags);

}  // namespace tessera::plans
