#include "tessera/app/program.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "checkpoints.h"
#include "commands.h"
#include "evaluation.h"
#include "flags.h"
#include "limits.h"
#include "standard_output.h"
#include "tessera/base/error.h"
#include "tessera/base/instruction_set.h"

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
      if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code(ExitCode::ok);
      complain("the output could not be written (a full disk?)");
      return code(ExitCode::failure);
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

// How many letters have to be inserted, left out or changed.
std::size_t letters_apart(const std::string& a, const std::string& b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < b.size(); ++j)
      diagonal = std::exchange(row[j + 1], std::min({diagonal + (a[i] != b[j]), row[j] + 1, row[j + 1] + 1}));
  }
  return row.back();
}

// Long names without dashes, of all commands.
std::set<std::string> all_flags(const CLI::App& app) {
  std::set<std::string> names;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) names.insert(name);
  for (const CLI::App* inner : app.get_subcommands([](const CLI::App*) { return true; }))
    names.merge(all_flags(*inner));
  return names;
}

// A flag that stands there several times and takes one value.
std::string repeated_flag(const CLI::App& command, const std::vector<std::string>& arguments) {
  std::map<std::string, int> times;
  for (const std::string& argument : arguments)
    if (argument.starts_with("--")) ++times[argument.substr(0, argument.find('='))];
  for (const auto& [name, count] : times) {
    const CLI::Option* option = command.get_option_no_throw(name);
    if (count > 1 && option != nullptr && option->get_items_expected_max() == 1)
      return concat(name, " is given ", count, " times; give it once");
  }
  return {};
}

// What is wrong with the first argument that nobody knows, and what may have been meant.
std::string unknown_argument(const CLI::App& command, const std::vector<std::string>& arguments) {
  std::vector<std::string> known;
  for (const CLI::Option* option : command.get_options())
    for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
  const auto inner = command.get_subcommands([](const CLI::App*) { return true; });
  for (const CLI::App* sub : inner) known.push_back(sub->get_name());
  for (const std::string& argument : arguments) {
    const std::string name = argument.substr(0, argument.find('='));
    if (argument == command.get_name() || std::find(known.begin(), known.end(), name) != known.end()) continue;
    if (inner.empty() && name.rfind("--", 0) != 0) continue;  // the value of a flag
    std::string message = concat("there is no ", name.rfind("-", 0) == 0 ? "flag " : "command ", name);
    const auto nearest = std::min_element(known.begin(), known.end(), [&](const auto& a, const auto& b) {
      return letters_apart(a, name) < letters_apart(b, name);
    });
    // Less than half of the letters may be wrong: --rank is not a slip for --app.
    const std::size_t letters = name.size() - std::min(name.size(), name.find_first_not_of('-'));
    if (nearest != known.end() && letters_apart(*nearest, name) * 2 < letters)
      message += concat("; did you mean ", *nearest, "?");
    return message;
  }
  return {};
}

constexpr const char* help_text =
    "Trains convolutional networks on images too large for one device, exactly.\n\n"
    "With one folder of images per class in DIR:\n"
    "  tessera train --datapath DIR --num-epochs 10     trains, saves and logs to runs/1\n"
    "  tessera eval runs/1 --datapath OTHER             evaluates on other images\n"
    "  tessera predict runs/1 --datapath NEW            writes predictions.csv\n"
    "  tessera report runs/1                            writes report.html\n"
    "tessera COMMAND --help lists the flags of a command.";

constexpr std::array<const char*, 5> bench_families{"layer", "spatial", "bundle", "gems", "gems-spatial"};

// The commands, and the flags as they were read. Each command on a network has options of its own, because defaults
// differ.
struct Commands {
  CLI::App* train = nullptr;
  CLI::App* plan = nullptr;
  CLI::App* verify = nullptr;
  CLI::App* eval = nullptr;
  CLI::App* predict = nullptr;
  CLI::App* halo = nullptr;
  CLI::App* export_weights = nullptr;
  CLI::App* report = nullptr;
  CLI::App* show = nullptr;
  std::map<std::string, CLI::App*> bench;
  std::map<const CLI::App*, Options> options;
  HaloOptions halo_options;
  ExportOptions export_options;
  ReportOptions report_options;
  ShowOptions show_options;
};

void add_network_command(Commands& commands, CLI::App* command, const ModelRegistry& models) {
  command->formatter_fn([](const CLI::App* a, std::string name, CLI::AppFormatMode mode) {
    CLI::Formatter formatter;
    formatter.column_width(34);
    return formatter.make_help(a, std::move(name), mode);
  });
  add_flags(*command, commands.options[command], models);
}

void add_halo_flags(CLI::App& halo, HaloOptions& o) {
  halo.add_option("--image-size", o.image_size, "512, or height x width: 300x170")->capture_default_str();
  halo.add_option("--batch-size", o.batch_size, "number of images")->capture_default_str();
  halo.add_option("--halo-len", o.halo_len, "width of the margin (halo), in pixels")->capture_default_str();
  halo.add_option("--in-channels", o.in_channels, "number of channels")->capture_default_str();
  halo.add_option("--num-spatial-parts", o.num_spatial_parts, "number of tiles")->capture_default_str();
  halo.add_option("--slice-method", o.slice_method, "shape of tiles: square, vertical or horizontal")
      ->check(CLI::IsMember({"square", "vertical", "horizontal"}))
      ->capture_default_str();
  halo.add_option("--warmup", o.warmup, "iterations before timing")->capture_default_str();
  halo.add_option("--iterations", o.iterations, "timed iterations")->capture_default_str();
  halo.add_flag("!--no-compute", o.with_compute, "time the exchange alone, without a convolution");
  halo.add_option("--json", o.json, "write the figures to this file as JSON");
}

void add_report_flags(CLI::App& report, ReportOptions& o) {
  report
      .add_option("RUN", o.runs,
                  "folders of --run or --log-dir, or files of --json; several runs are compared side by side")
      ->required();
  report.add_option("-o,--output", o.output, "the HTML file. Default: report.html");
  report.add_flag("--watch", o.watch, "serve the page on this machine instead, and update it while the run goes on");
  report.add_option("--port", o.port, "--watch: the port on 127.0.0.1. Default: any free port")
      ->check(CLI::Range(0, 65535));
  report.add_flag("--quiet", o.quiet, "print errors only");
}

void add_show_flags(CLI::App& show, ShowOptions& o) {
  show.add_option("MODEL", o.model, "the name of a network, or a network saved by PyTorch: net.pt, net.pt2")
      ->required();
  show.add_option("--image-size", o.image_size, "512, or height x width: 300x170")->capture_default_str();
  show.add_option("--channels", o.channels, "channels of the images")
      ->capture_default_str()
      ->check(CLI::Range(std::int64_t{1}, most_channels));
  show.add_option("--model-output", o.output, "network files with several outputs: which one to train");
  show.add_flag("-v,--verbose", o.verbose, "list every node");
}

void add_commands(Commands& commands, CLI::App& app, const ModelRegistry& models) {
  commands.train = app.add_subcommand("train", "train a network, and keep checkpoints and a log");
  commands.plan =
      app.add_subcommand("plan", "print how a run would be divided, and its memory and cost, without running it");
  commands.verify = app.add_subcommand("verify", "compare a plan with training on one device, number by number");
  commands.eval = app.add_subcommand("eval", "evaluate a trained network on a data set");
  commands.predict =
      app.add_subcommand("predict", "predict a class for each image (CSV file), or for each pixel (masks)");
  for (auto* command : {commands.train, commands.plan, commands.verify, commands.eval, commands.predict})
    add_network_command(commands, command, models);
  add_validation_flags(*commands.train, commands.options[commands.train].evaluation);
  for (auto* command : {commands.eval, commands.predict})
    add_weights_flags(*command, commands.options[command].evaluation);
  commands.predict
      ->add_option(
          "-o,--output", commands.options[commands.predict].evaluation.output,
          "the CSV file; for networks that label pixels, the folder of masks. Default: predictions.csv, predictions")
      ->group("Output");
  commands.predict
      ->add_flag("--logits", commands.options[commands.predict].evaluation.logits,
                 "add one column per class with the logits")
      ->group("Output");
  commands.predict
      ->add_option(
          "--heatmap", commands.options[commands.predict].evaluation.heatmap,
          "a folder for class activation maps: where the network looked, as TIFF and as pictures over the images")
      ->group("Output");
  for (auto* command : {commands.train, commands.plan, commands.verify})
    add_automatic_flags(*command, commands.options[command]);
  commands.plan->add_flag("--timeline", commands.options[commands.plan].timeline, "draw the schedule")->group("Output");
  commands.plan
      ->add_option("--scaling", commands.options[commands.plan].scaling,
                   "--auto for every doubling of ranks in this range, like 1..4096: strong and weak scaling as tables, "
                   "with --json as a document that tessera report draws")
      ->group("Output");
  const auto add_trace = [&](CLI::App* command) {
    command
        ->add_option("--trace", commands.options[command].trace,
                     "write every action of every rank to this file as a Chrome trace")
        ->group("Output");
  };
  add_trace(commands.train);
  Options& train = commands.options[commands.train];
  add_checkpoint_flags(*commands.train, train.checkpoints);
  for (auto* command : {commands.train, commands.plan})
    command
        ->add_option(
            "--ema", commands.options[command].train.optimizer.average,
            "keep a moving average of the weights with this decay (0.999), and evaluate, save and export the average")
        ->group("Training");
  commands.train
      ->add_option("--log-dir", train.log_dir,
                   "folder for metrics.jsonl, TensorBoard event files and the data of `tessera report`")
      ->group("Output");
  commands.train
      ->add_option(
          "--run", train.run_dir,
          "one folder for everything: --checkpoint-dir DIR --log-dir DIR/log, and evaluate after each epoch. Default "
          "with --datapath and without --steps: runs/1, runs/2, ...; none: keep nothing")
      ->group("Output");
  Options& verify = commands.options[commands.verify];
  verify.dtype = "float64";  // differences are meant to be seen
  commands.verify
      ->add_option("--tolerance", verify.tolerance,
                   "largest relative difference. Default: 1e-10 in float64, 1e-4 in float32")
      ->group("Output");

  CLI::App* bench =
      app.add_subcommand("bench", "time one kind of parallelism, with the defaults of the published benchmarks");
  bench->require_subcommand(1);
  for (const std::string family : bench_families) {
    CLI::App* command = bench->add_subcommand(family, "training with " + family + " parallelism");
    commands.bench[family] = command;
    apply_bench_defaults(family, commands.options[command]);
    add_network_command(commands, command, models);
    add_trace(command);
    command
        ->add_flag("--skip-verification", commands.options[command].skip_verification,
                   "time the plan without verifying it first")
        ->group("Output");
  }
  commands.halo = bench->add_subcommand("halo", "the margin (halo) exchange alone");
  add_halo_flags(*commands.halo, commands.halo_options);

  commands.export_weights =
      app.add_subcommand("export", "write the weights of a checkpoint to one safetensors file, for Python");
  ExportOptions& o = commands.export_options;
  commands.export_weights
      ->add_option("checkpoint", o.checkpoint,
                   "a checkpoint, or a folder of --run or --checkpoint-dir (its newest whole checkpoint)")
      ->required();
  commands.export_weights->add_option("-o,--output", o.output, "the safetensors file")->required();
  commands.export_weights->add_flag("--quiet", o.quiet, "print errors only");
  commands.show = app.add_subcommand("show", "print a network as a table: cells, shapes, parameters and costs");
  add_show_flags(*commands.show, commands.show_options);
  commands.report = app.add_subcommand(
      "report", "write one HTML page about runs: curves, plan, timeline, memory, confusion matrix; or about --scaling");
  add_report_flags(*commands.report, commands.report_options);

  commands.train->footer("Example: tessera train --datapath data --num-epochs 10 --val-share 0.1");
  commands.plan->footer(
      "Example: tessera plan --model resnet18 --image-size 2048 --batch-size 1 --grid 2x2 --timeline");
  commands.verify->footer("Example: tessera verify --model resnet18 --image-size 97x75 --batch-size 2 --grid 2x2");
  commands.eval->footer("Example: tessera eval runs/1 --datapath other");
  commands.predict->footer("Example: tessera predict runs/1 --datapath new --heatmap maps");
  bench->footer("Example: tessera bench spatial --model resnet18 --image-size 512 --batch-size 4 --json spatial.json");
  commands.export_weights->footer("Example: tessera export runs/1 -o weights.safetensors");
  commands.show->footer("Example: tessera show net.pt --image-size 512");
  commands.report->footer("Example: tessera report runs/1 runs/2 -o compared.html");
}

}  // namespace

int run_program(int argc, char** argv, const ModelRegistry& named) {
  try {
    limit_libraries(argv);
  } catch (const Error& error) {
    complain(error.what());
    return code(error.code());
  }
  const auto files = std::make_shared<NetworkFiles>();
  const ModelRegistry models = with_files(named, files);
  std::signal(SIGXFSZ, SIG_IGN);  // a file that grows beyond the limit is an error like a full disk
  std::vector<std::string> arguments(argv + 1, argv + argc);
  // Four times at most: then with the flags of --config, then with those of --plan, then with those that a resumed run
  // was started with.
  for (bool with_file = false, with_plan = false, with_run = false;;) {
    CLI::App app{help_text, "tessera"};
    app.require_subcommand(0, 1);
    bool version = false;
    app.add_flag("--version", version, "print the version and the libraries it was built with");
    Commands commands;
    add_commands(commands, app, models);
    CLI::App* command = nullptr;
    try {
      app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
      for (CLI::App* next = &app; next != nullptr; next = command == next ? nullptr : command)
        command = next->get_subcommands().empty() ? next : next->get_subcommands()[0];
      if (const auto found = commands.options.find(command); found != commands.options.end()) {
        Options& options = found->second;
        options.given = given_flags(*command);
        options.command.assign(argv, argv + argc);
        options.files = files;
        apply_run_folder(options);
        std::vector<std::string> more;
        const bool from_file = !with_file && !options.config.empty();
        const bool from_plan = !from_file && !with_plan && !options.plan_file.empty();
        const bool from_run = !from_file && !from_plan && !with_run && !options.checkpoints.resume.empty();
        if (from_plan) more = flags_from_plan(*command, options);
        if (from_file) more = flags_from_file(*command, options.config, all_flags(app));
        if (from_run) more = flags_from_run(*command, options);
        with_file = with_file || from_file;
        with_plan = with_plan || from_plan;
        with_run = with_run || from_run;
        arguments.insert(arguments.end(), more.begin(), more.end());
        if (!more.empty() || from_file || from_plan) continue;  // there may be more to read
      }
    } catch (const CLI::CallForHelp& help) {
      return app.exit(help);
    } catch (const CLI::ParseError& error) {
      const CLI::App* innermost = &app;
      auto rest = arguments.begin();
      std::string path, message;
      while (!innermost->get_subcommands().empty()) {
        innermost = innermost->get_subcommands()[0];
        rest = std::find(rest, arguments.end(), innermost->get_name());
        path += innermost->get_name() + " ";
      }
      if (dynamic_cast<const CLI::ExtrasError*>(&error) || dynamic_cast<const CLI::RequiredError*>(&error))
        message = unknown_argument(*innermost, {rest, arguments.end()});
      if (dynamic_cast<const CLI::ArgumentMismatch*>(&error))
        message = repeated_flag(*innermost, {rest, arguments.end()});
      if (message.empty()) message = error.what();
      complain(concat(message, message.ends_with('?') ? " See" : "; see", " tessera ", path, "--help"));
      return code(ExitCode::usage);
    } catch (const Error& error) {
      complain(error.what());
      return code(error.code());
    }
    if (version) {
      fmt::print("{}", version_text());
      return code(ExitCode::ok);
    }
    if (command == commands.halo)
      return guarded([&](const Launch& l) {
        const StandardOutputForDocuments documents({&commands.halo_options.json});
        run_bench_halo(commands.halo_options, l);
      });
    if (command == commands.report)
      return guarded([&](const Launch& l) {
        if (l.speaks()) run_report(commands.report_options);
      });
    if (command == commands.show)
      return guarded([&](const Launch& l) {
        if (l.speaks()) run_show(commands.show_options, models, *files);
      });
    if (command == commands.export_weights)
      return guarded([&](const Launch& l) { run_export(commands.export_options, l); });
    if (const auto found = commands.options.find(command); found != commands.options.end()) {
      Options& options = found->second;
      return guarded([&](const Launch& l) {
        const StandardOutputForDocuments documents({&options.json, &options.trace});
        if (command == commands.train) return run_train(options, models, l);
        if (command == commands.plan) return run_plan(options, models, l);
        if (command == commands.verify) return run_verify(options, models, l);
        if (command == commands.eval) return run_eval(options, models, l);
        if (command == commands.predict) return run_predict(options, models, l);
        run_bench(options, command->get_name(), models, l);
      });
    }
    fmt::print("{}", app.help());
    return code(ExitCode::usage);
  }
}

}  // namespace tessera
