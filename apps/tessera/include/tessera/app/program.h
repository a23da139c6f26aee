// The whole program as a function, so that a network of your own gets every command and flag of it:
//
//     int main(int argc, char** argv) {
//       auto models = tessera::builtin_models();
//       models.add("mine", {"my network", {}, my_network});
//       return tessera::run_program(argc, argv, models);
//     }
#pragma once

#include "tessera/models/registry.h"

namespace tessera {

/// Parses the flags, runs the command, prints errors to stderr. Returns the exit code: 0 success, 1 failure, 2 wrong
/// usage, 3 a loss that is not a number.
int run_program(int argc, char** argv, const ModelRegistry& models);

}  // namespace tessera
