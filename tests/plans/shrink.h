// Makes a plan that fails as small as it can be and still fail.
#pragma once

#include <functional>

#include "draw.h"

namespace tessera::plans {

/// Smaller plans that differ from this one in one flag: the flag left out, or its numbers made smaller. The most daring
/// ones first.
std::vector<Flags> smaller_plans(const Flags& flags);

/// Takes one step after the other to a smaller plan for which fails(plan) still holds, until no step does or `budget`
/// calls have been made.
Flags shrunk(Flags flags, const std::function<bool(const Flags&)>& fails, int budget);

}  // namespace tessera::plans
