#include "tessera/io/checkpoint_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <ranges>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/io/checkpoint.h"
#include "tessera/io/strict_json.h"

namespace tessera {
namespace {

constexpr const char* name_prefix = "step-";
constexpr std::size_t fewest_digits = 6;

std::string hexadecimal(std::uint32_t crc) { return fmt::format("{:08x}", crc); }

// Newest first.
std::vector<std::string> checkpoints_in(const std::string& dir) {
  std::vector<std::string> names;
  for (const auto& name : list_folder(dir))
    if (step_of(name) && is_folder(join_path(dir, name))) names.push_back(name);
  std::ranges::sort(names, std::greater{}, [](const std::string& name) { return *step_of(name); });
  return names;
}

bool is_whole(const std::string& folder) {
  try {
    check_sizes(folder);
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

std::string checkpoint_name(std::int64_t step) {
  ensure(step >= 0, "a checkpoint of step ", step);
  return fmt::format("{}{:06}", name_prefix, step);
}

std::optional<std::int64_t> step_of(const std::string& name) {
  const std::string_view prefix = name_prefix;
  if (!name.starts_with(prefix)) return std::nullopt;
  const char *begin = name.data() + prefix.size(), *end = name.data() + name.size();
  std::int64_t step = 0;
  const auto [stop, problem] = std::from_chars(begin, end, step);
  // One name for each step: neither signs nor more zeros.
  if (problem != std::errc{} || stop != end || step < 0 || name != checkpoint_name(step)) return std::nullopt;
  return step;
}

nlohmann::ordered_json sums_json(const std::map<std::string, FileSum>& sums) {
  nlohmann::ordered_json files = nlohmann::ordered_json::object();
  for (const auto& [name, sum] : sums) files[name] = {{"bytes", sum.bytes}, {"crc32c", hexadecimal(sum.crc32c)}};
  return {{"algorithm", "crc32c"}, {"files", std::move(files)}};
}

std::map<std::string, FileSum> parse_sums(const nlohmann::json& json, const std::string& file) {
  if (const auto algorithm = field<std::string>(json, "algorithm", file); algorithm != "crc32c")
    throw Error(concat(file, " has checksums of the kind '", algorithm, "', and 'crc32c' is expected"));
  const auto files = json.find("files");
  if (files == json.end() || !files->is_object()) throw Error(file + " has no object \"files\"");
  std::map<std::string, FileSum> sums;
  for (const auto& [name, value] : files->items()) {
    if (name.empty() || name.find('/') != std::string::npos || name.find('\0') != std::string::npos)
      throw Error(concat(file, " names '", name, "', which is no file beside it"));
    if (!value.is_object()) throw Error(concat(file, ": '", name, "' is not described by a JSON object"));
    FileSum sum{.bytes = field<std::int64_t>(value, "bytes", concat(file, ": '", name, "'"))};
    const auto text = field<std::string>(value, "crc32c", concat(file, ": '", name, "'"));
    const auto [stop, problem] = std::from_chars(text.data(), text.data() + text.size(), sum.crc32c, 16);
    if (text.size() != 8 || problem != std::errc{} || stop != text.data() + 8)
      throw Error(concat(file, ": the checksum '", text, "' of '", name, "' is not of 8 hexadecimal digits"));
    sums.emplace(name, sum);
  }
  return sums;
}

std::map<std::string, FileSum> read_sums(const std::string& folder) {
  const std::string path = join_path(folder, checksums_file);
  auto sums = parse_sums(parse_object(read_text(path), path), path);
  for (const std::string kind : {"model", "optimizer"}) {
    const std::string index = kind + index_suffix;
    if (!sums.contains(index)) throw Error(concat(path, " does not name ", index));
    for (const auto& file : TensorStore::of_index(join_path(folder, index)).files())
      if (!sums.contains(file)) throw Error(concat(path, " does not name ", file));
  }
  if (!sums.contains(run_state_file)) throw Error(concat(path, " does not name ", run_state_file));
  return sums;
}

void check_sizes(const std::string& folder) {
  for (const auto& [name, sum] : read_sums(folder)) {
    const InputFile file(join_path(folder, name));
    if (file.size() != sum.bytes)
      throw Error(concat(file.path(), " has ", file.size(), " bytes instead of ", sum.bytes, ": it is damaged"));
  }
}

void verify_checkpoint(const std::string& folder) {
  check_sizes(folder);
  for (const auto& [name, sum] : read_sums(folder)) {
    const FileSum found = sum_of_file(join_path(folder, name));
    if (found != sum)
      throw Error(concat(join_path(folder, name), " is damaged: its checksum is ", hexadecimal(found.crc32c),
                         " instead of ", hexadecimal(sum.crc32c)));
  }
  const CheckpointReader readable(folder);
}

std::optional<std::string> find_latest(const std::string& dir, const Warn& warn) {
  if (!is_folder(dir)) return std::nullopt;
  for (const auto& name : checkpoints_in(dir)) {
    const std::string folder = join_path(dir, name);
    try {
      verify_checkpoint(folder);
      return folder;
    } catch (const Error& error) {
      warn(concat("the checkpoint ", folder, " is passed over: ", error.what()));
    }
  }
  return std::nullopt;
}

std::string whole_checkpoint(const std::string& path, const Warn& warn) {
  if (!is_folder(path)) throw Error(concat("there is no checkpoint ", path));
  if (is_file(join_path(path, checksums_file)) || checkpoints_in(path).empty()) {
    verify_checkpoint(path);
    return path;
  }
  if (const auto latest = find_latest(path, warn)) return *latest;
  throw Error(concat("there is no whole checkpoint in ", path, "; to start anew, remove the damaged ones"));
}

void prune(const std::string& dir, int keep, std::int64_t last_step) {
  ensure(keep > 0, "cannot keep ", keep, " checkpoints");
  int whole = 0;
  for (const auto& name : checkpoints_in(dir)) {
    if (*step_of(name) > last_step) continue;
    const std::string folder = join_path(dir, name);
    if (whole < keep) {
      whole += is_whole(folder) ? 1 : 0;
      continue;
    }
    // First out of the way: half of a checkpoint must not look like one.
    const std::string gone = join_path(dir, concat(".", name, gone_suffix));
    remove_folder(gone);
    rename_path(folder, gone);
    remove_folder(gone);
  }
}

void remove_leftovers(const std::string& dir) {
  if (!is_folder(dir)) return;
  for (const auto& name : list_folder(dir))
    if (name.starts_with(concat(".", name_prefix)) &&
        (name.ends_with(part_suffix) || name.ends_with(gone_suffix) || name.ends_with(".old")))
      remove_folder(join_path(dir, name));
}

}  // namespace tessera
