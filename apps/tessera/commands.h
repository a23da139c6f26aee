// One function a subcommand. Each checks the whole job before it starts and throws on failure.
#pragma once

#include "launch.h"
#include "options.h"

namespace tessera {

void run_train(Options& options, const ModelRegistry& models, const Launch& launch, int argc, char** argv);
void run_plan(Options& options, const ModelRegistry& models, const Launch& launch);
/// Throws Error when a difference is beyond the tolerance.
void run_verify(Options& options, const ModelRegistry& models, const Launch& launch);
std::string version_text();

}  // namespace tessera
