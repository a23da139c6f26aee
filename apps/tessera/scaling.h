// tessera plan --scaling: curves of the best plans on more and more ranks.
#pragma once

#include <string>

#include "job.h"
#include "tessera/planner/scaling.h"

namespace tessera {

/// Both curves as tables, for people.
std::string scaling_tables(const Scaling& scaling);
/// The same as JSON: the member "scaling" of the document that --json writes and `tessera report` draws.
std::string scaling_json(const Scaling& scaling, const Job& job, const Options& options, bool measured);
void write_scaling(const std::string& path, const std::string& json);

}  // namespace tessera
