// Flags that do not come from the command line: those of --config, and those that a run was started with.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "options.h"

namespace tessera {

/// With links followed; as it is if there is no such file.
std::string absolute_path(const std::string& path);

/// The flags that were given, without dashes, and their values as text.
std::map<std::string, std::string> given_flags(const CLI::App& command);

/// What --run stands for. Throws UsageError if the flags that it stands for are given, too.
void apply_run_folder(Options& options);

/// Whether `train` keeps its run though no flag says where: on a data set, and not for a number of steps, as trials and
/// benchmarks are.
bool wants_new_run_folder(const Options& options);
/// Makes runs/N with the next free N. Throws Error.
std::string make_run_folder();

/// The lines of a file of flags, as arguments; those that the command line gives, too, are left out, and so are those
/// that only other commands know: one file serves them all.
std::vector<std::string> flags_from_file(const CLI::App& command, const std::string& file,
                                         const std::set<std::string>& known_elsewhere);

/// The flags of --plan, a document of `tessera plan --json`, as arguments; those that the command line gives, too, are
/// left out. Throws UsageError.
std::vector<std::string> flags_from_plan(const CLI::App& command, const Options& options);

/// For `train --resume`: what the run was started with and this command line does not say, as arguments. Whoever names
/// another plan, or another length, gets that alone.
std::vector<std::string> flags_from_run(const CLI::App& command, const Options& options);

/// Of the flags given, those that a resumed run takes from its checkpoint. Paths become absolute.
std::map<std::string, std::string> flags_to_keep(const std::map<std::string, std::string>& given);

}  // namespace tessera
