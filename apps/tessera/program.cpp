#include "tessera/app/program.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <cstdio>

#include "commands.h"
#include "tessera/base/error.h"

namespace tessera {
namespace {

int code(ExitCode c) { return static_cast<int>(c); }

void complain(const std::string& message) { fmt::print(stderr, "tessera: {}\n", message); }

// Runs a command inside the launch; every exception becomes a message and an exit code here.
template <class Command>
int guarded(const Command& command) {
  try {
    const Launch launch;
    try {
      command(launch);
      return code(ExitCode::ok);
    } catch (const UsageError& error) {
      // Every rank finds the same problem; one of them tells it.
      if (launch.speaks()) complain(error.what());
      return code(error.code());
    } catch (const Error& error) {
      complain(error.what());
      return code(error.code());
    }
  } catch (const Error& error) {
    complain(error.what());
    return code(error.code());
  } catch (const std::exception& error) {
    complain(error.what());
    return code(ExitCode::failure);
  }
}

}  // namespace

int run_program(int argc, char** argv, const ModelRegistry& models) {
  CLI::App app{"Trains convolutional networks on images too large for one device, exactly.", "tessera"};
  app.require_subcommand(0, 1);
  bool version = false;
  app.add_flag("--version", version, "print the version and what it was built with");

  Options options;
  auto* train = app.add_subcommand("train", "train a network");
  auto* plan = app.add_subcommand("plan", "print who would run what, without running it");
  auto* verify = app.add_subcommand("verify", "compare a run with torch's autograd, number by number");
  for (auto* command : {train, plan, verify}) {
    command->formatter_fn([](const CLI::App* a, std::string name, CLI::AppFormatMode mode) {
      CLI::Formatter formatter;
      formatter.column_width(34);
      return formatter.make_help(a, std::move(name), mode);
    });
    add_flags(*command, options, models);
  }
  verify->add_option("--tolerance", options.tolerance, "largest relative difference (1e-10 in float64, 1e-4 in float32)")
      ->group("Output");

  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::CallForAllHelp& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    complain(error.what() + std::string("; see tessera ") +
             (app.get_subcommands().empty() ? "" : app.get_subcommands()[0]->get_name() + " ") + "--help");
    return code(ExitCode::usage);
  }
  if (version) {
    fmt::print("{}", version_text());
    return code(ExitCode::ok);
  }
  if (*train) return guarded([&](const Launch& launch) { run_train(options, models, launch, argc, argv); });
  if (*plan) return guarded([&](const Launch& launch) { run_plan(options, models, launch); });
  if (*verify) {
    // Differences are meant to be seen, so float64 unless another type is asked for.
    if (verify->count("--dtype") == 0) options.dtype = "float64";
    return guarded([&](const Launch& launch) { run_verify(options, models, launch); });
  }
  fmt::print("{}", app.help());
  return code(ExitCode::usage);
}

}  // namespace tessera
