#include "tessera/app/program.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cstdio>
#include <fstream>

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

struct Commands {
  CLI::App* train = nullptr;
  CLI::App* plan = nullptr;
  CLI::App* verify = nullptr;
  std::array<CLI::App*, 3> all() const { return {train, plan, verify}; }
};

Commands add_commands(CLI::App& app, Options& options, const ModelRegistry& models) {
  Commands commands{app.add_subcommand("train", "train a network"),
                    app.add_subcommand("plan", "print who would run what, without running it"),
                    app.add_subcommand("verify", "compare a run with torch's autograd, number by number")};
  for (auto* command : commands.all()) {
    command->formatter_fn([](const CLI::App* a, std::string name, CLI::AppFormatMode mode) {
      CLI::Formatter formatter;
      formatter.column_width(34);
      return formatter.make_help(a, std::move(name), mode);
    });
    add_flags(*command, options, models);
  }
  commands.verify
      ->add_option("--tolerance", options.tolerance, "largest relative difference (1e-10 in float64, 1e-4 in float32)")
      ->group("Output");
  return commands;
}

// The lines of a file of flags, as arguments; those that the command line gives, too, are left out.
std::vector<std::string> flags_from_file(const CLI::App& command, const std::string& file) {
  std::vector<std::string> flags;
  std::ifstream in(file);
  for (const auto& item : CLI::ConfigTOML().from_config(in)) {
    const std::string name = "--" + item.name;
    const CLI::Option* option = command.get_option_no_throw(name);
    require(item.parents.empty(), "--config ", file, ": section [", item.parents.empty() ? "" : item.parents[0],
            "] is not used; write lines of name = value only");
    require(option != nullptr, "--config ", file, ": there is no flag '", item.name, "'");
    if (option->count() > 0) continue;
    std::string value;
    for (const auto& part : item.inputs) value += (value.empty() ? "" : ",") + part;
    flags.push_back(name + "=" + value);
  }
  return flags;
}

}  // namespace

int run_program(int argc, char** argv, const ModelRegistry& models) {
  std::vector<std::string> arguments(argv + 1, argv + argc);
  // Twice at most: the second time with the flags of --config.
  for (bool with_file = false;; with_file = true) {
    CLI::App app{"Trains convolutional networks on images too large for one device, exactly.", "tessera"};
    app.require_subcommand(0, 1);
    bool version = false;
    app.add_flag("--version", version, "print the version and what it was built with");
    Options options;
    const Commands commands = add_commands(app, options, models);
    try {
      app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
      CLI::App* command = app.get_subcommands().empty() ? nullptr : app.get_subcommands()[0];
      if (!options.config.empty() && !with_file) {
        const auto flags = flags_from_file(*command, options.config);
        arguments.insert(arguments.end(), flags.begin(), flags.end());
        continue;
      }
    } catch (const CLI::CallForHelp& help) {
      return app.exit(help);
    } catch (const CLI::ParseError& error) {
      complain(error.what() + std::string("; see tessera ") +
               (app.get_subcommands().empty() ? "" : app.get_subcommands()[0]->get_name() + " ") + "--help");
      return code(ExitCode::usage);
    } catch (const Error& error) {
      complain(error.what());
      return code(error.code());
    }
    if (version) {
      fmt::print("{}", version_text());
      return code(ExitCode::ok);
    }
    if (*commands.train) return guarded([&](const Launch& l) { run_train(options, models, l, argc, argv); });
    if (*commands.plan) return guarded([&](const Launch& l) { run_plan(options, models, l); });
    if (*commands.verify) {
      // Differences are meant to be seen, so float64 unless another type is asked for.
      if (commands.verify->count("--dtype") == 0) options.dtype = "float64";
      return guarded([&](const Launch& l) { run_verify(options, models, l); });
    }
    fmt::print("{}", app.help());
    return code(ExitCode::usage);
  }
}

}  // namespace tessera
