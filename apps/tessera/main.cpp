#include "tessera/app/program.h"

int main(int argc, char** argv) { return tessera::run_program(argc, argv, tessera::builtin_models()); }
