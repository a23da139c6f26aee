// The division of a run as flags: names and values as text, as the command line, plan documents and people have them.
#pragma once

#include <map>
#include <string>

#include "tessera/plan/plan.h"

namespace tessera {

using PlanFlags = std::map<std::string, std::string>;

/// What differs from the defaults, by the names of the flags without dashes.
PlanFlags flags_of(const PlanOptions& options);

/// The inverse of it. Throws UsageError for a flag that has nothing to do with plans, or a value that is none.
void set_flag(PlanOptions& options, const std::string& name, const std::string& value);

/// "--grid 2x2 --split-size 2", in the order that people would write.
std::string words_of(const PlanFlags& flags);

}  // namespace tessera
