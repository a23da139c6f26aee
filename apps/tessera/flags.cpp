#include "flags.h"

#include <sys/stat.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/io/description.h"
#include "tessera/io/file.h"

namespace tessera {
namespace {

using Names = std::set<std::string>;

// About one start of a run, not about the run.
const Names& of_one_start() {
  static const Names names{"auto",
                           "ranks",
                           "plan",
                           "batch-at-most",
                           "config",
                           "json",
                           "trace",
                           "verbose",
                           "quiet",
                           "checkpoint-dir",
                           "checkpoint-every",
                           "keep",
                           "on-save-error",
                           "init-from",
                           "resume",
                           "log-dir",
                           "run"};
  return names;
}

// How a run is divided. --parts and --batch-norm, which batch norm sees, are among them: a whole command line for
// another plan must not get a part of the old one.
const Names& of_the_plan() {
  static const Names names{
      "parts",        "split-size",   "balance", "balance-by", "schedule",   "replicas",      "num-spatial-parts",
      "spatial-size", "slice-method", "grid",    "turns",      "batch-norm", "halo-D2",       "fused-layers",
      "local-DP",     "times",        "num-hp",  "DP-ONLY",    "grad-sync",  "ranks-per-node"};
  return names;
}

// Where values wait: one flag says how, the other where.
const Names& of_the_store() {
  static const Names names{"store", "scratch"};
  return names;
}

const Names& of_the_length() {
  static const Names names{"steps", "num-epochs"};
  return names;
}

}  // namespace

std::string absolute_path(const std::string& path) {
  char* found = ::realpath(path.c_str(), nullptr);
  if (!found) return path;
  const std::string out = found;
  std::free(found);
  return out;
}

std::map<std::string, std::string> given_flags(const CLI::App& command) {
  std::map<std::string, std::string> flags;
  for (const CLI::Option* option : command.get_options())
    if (option->count() > 0 && !option->get_lnames().empty())
      flags[option->get_lnames().front()] = join(option->results(), ",");
  return flags;
}

void apply_run_folder(Options& o) {
  if (o.run_dir.empty() || o.run_dir == "none") return;
  for (const char* flag : {"checkpoint-dir", "log-dir"})
    require(!o.has(flag), "--run ", o.run_dir, " already names the place of checkpoints and log; leave out --", flag);
  o.checkpoints.dir = o.run_dir;
  o.log_dir = o.run_dir + "/log";
  o.evaluation.each_epoch = !o.evaluation.every;
}

bool wants_new_run_folder(const Options& o) {
  if (!o.has("datapath")) return false;
  for (const char* flag : {"run", "checkpoint-dir", "log-dir", "resume", "steps"})
    if (o.has(flag)) return false;
  return true;
}

std::string make_run_folder() {
  const std::string above = "runs";
  std::string why;
  try {
    make_folders(above);
    std::int64_t newest = 0;
    for (const std::string& name : list_folder(above))
      if (!name.empty() && name.size() < 10 && name.find_first_not_of("0123456789") == std::string::npos)
        newest = std::max<std::int64_t>(newest, std::stoll(name));
    // Another run may be looking for a number at this moment, too.
    do {
      const std::string folder = join_path(above, std::to_string(++newest));
      if (::mkdir(folder.c_str(), 0777) == 0) return folder;
    } while (errno == EEXIST);
    why = std::strerror(errno);
  } catch (const Error& error) {
    why = error.what();
  }
  throw Error(concat("the run cannot be kept in ", above, "/ (", why,
                     "); name a folder with --run DIR, or use --run none to keep nothing"));
}

std::vector<std::string> flags_from_file(const CLI::App& command, const std::string& file,
                                         const std::set<std::string>& known_elsewhere) {
  std::vector<std::string> flags;
  const auto given = given_flags(command);
  const bool length_is_given =
      std::ranges::any_of(of_the_length(), [&](const std::string& name) { return given.contains(name); });
  std::ifstream in(file);
  for (const auto& item : CLI::ConfigTOML().from_config(in)) {
    const std::string name = "--" + item.name;
    const CLI::Option* option = command.get_option_no_throw(name);
    require(item.parents.empty(), "--config ", file, ": section [", item.parents.empty() ? "" : item.parents[0],
            "] is not used; write lines of name = value only");
    require(option != nullptr || known_elsewhere.contains(item.name), "--config ", file, ": there is no flag '",
            item.name, "'");
    if (option == nullptr) continue;
    if (option->count() > 0) continue;
    if (of_the_length().contains(item.name) && length_is_given) continue;
    flags.push_back(name + "=" + join(item.inputs, ","));
  }
  return flags;
}

std::vector<std::string> flags_from_plan(const CLI::App& command, const Options& o) {
  const std::string& file = o.plan_file;
  require(!o.automatic, "--plan ", file, " names a plan, and --auto looks for one; give one of them");
  std::ifstream in(file);
  const auto document = nlohmann::json::parse(in, nullptr, /*allow_exceptions=*/false);
  require(document.is_object() && document.contains("flags") && document["flags"].is_object(), "--plan ", file,
          " is no document of a plan; write one with tessera plan --json FILE");
  std::vector<std::string> flags;
  for (const auto& [name, value] : document["flags"].items()) {
    const bool of_a_plan =
        of_the_plan().contains(name) || name == "batch-size" || name == "recompute" || name == "store";
    require(value.is_string() && of_a_plan, "--plan ", file, ": '", name,
            "' is not a flag about how a run is divided, with a text as its value");
    if (!o.has(name)) flags.push_back(concat("--", name, "=", value.get<std::string>()));
  }
  return flags;
}

namespace {

// --auto takes the batch of a step, and other plans that of a replica and a direction.
std::string batch_of_a_step(const std::map<std::string, std::string>& flags) {
  const auto number = [&](const char* name) {
    const auto found = flags.find(name);
    return found == flags.end() ? 1 : std::stoll(found->second);
  };
  const auto schedule = flags.find("schedule");
  const bool gems = schedule == flags.end() ? flags.contains("times") : schedule->second.starts_with("gems");
  return std::to_string(number("batch-size") * number("replicas") * (gems ? 2 * number("times") : 1));
}

}  // namespace

std::vector<std::string> flags_from_run(const CLI::App& command, const Options& options) {
  const CheckpointOptions& o = options.checkpoints;
  std::optional<RunDescription> description;
  try {
    description = find_description(o.resume == "auto" ? o.dir : o.resume);
  } catch (const Error&) {
    // Whoever reads the checkpoint will say what is wrong with it.
  }
  if (!description) return {};
  const auto gives_any_of = [&](const Names& names) {
    return std::ranges::any_of(names, [&](const std::string& name) { return options.has(name); });
  };
  // Those of a kind replace each other together.
  Names replaced;
  for (const Names* kind : {&of_the_plan(), &of_the_store(), &of_the_length()})
    if (gives_any_of(*kind)) replaced.insert(kind->begin(), kind->end());
  // A plan that is looked for, or read from a file, takes the place of the old one.
  if (options.automatic || !options.plan_file.empty()) {
    replaced.insert(of_the_plan().begin(), of_the_plan().end());
    replaced.insert("recompute");
  }
  std::vector<std::string> flags;
  for (const auto& [name, value] : description->flags) {
    if (options.has(name) || replaced.contains(name) || !command.get_option_no_throw("--" + name)) continue;
    const bool whole = name == "batch-size" && options.automatic;
    flags.push_back(concat("--", name, "=", whole ? batch_of_a_step(description->flags) : value));
  }
  return flags;
}

std::map<std::string, std::string> flags_to_keep(const std::map<std::string, std::string>& given) {
  std::map<std::string, std::string> kept;
  for (const auto& [name, value] : given) {
    if (of_one_start().contains(name)) continue;
    const bool path = name == "datapath" || name == "val-datapath" || name == "scratch" ||
                      (name == "model" && value.ends_with(".pt")) || (name == "model" && value.ends_with(".pt2"));
    kept[name] = path ? absolute_path(value) : value;
  }
  return kept;
}

}  // namespace tessera
