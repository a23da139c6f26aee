#include "tessera/io/description.h"

#include <algorithm>
#include <functional>

#include "tessera/base/error.h"
#include "tessera/io/checkpoint.h"
#include "tessera/io/checkpoint_files.h"
#include "tessera/io/safetensors.h"
#include "tessera/io/strict_json.h"

namespace tessera {
namespace {

using OrderedJson = nlohmann::ordered_json;

template <class T>
T field_as(const nlohmann::json& object, const char* name, const std::string& where) {
  try {
    return object.at(name).get<T>();
  } catch (const nlohmann::json::exception&) {
    throw Error(concat(where, ": the field \"", name, "\" is missing, or not what it should be"));
  }
}

std::optional<RunDescription> of_checkpoint(const std::string& folder) {
  const std::string path = join_path(folder, run_state_file);
  const auto sums = read_sums(folder);
  if (sum_of_file(path) != sums.at(run_state_file)) throw Error(concat(path, " is damaged"));
  return parse_run_state(read_text(path), path).description;
}

std::optional<RunDescription> of_file(const std::string& path) {
  const SafetensorsFile file(path);
  const auto found = file.metadata().find(description_key);
  if (found == file.metadata().end()) return std::nullopt;
  return parse_description(found->second, concat(path, ": the metadata \"", description_key, "\""));
}

}  // namespace

std::string to_json(const RunDescription& d, bool with_run) {
  const NetworkUse& use = d.use;
  OrderedJson json{{"use",
                    {{"model", use.model},
                     {"options", use.options},
                     {"classes", use.classes},
                     {"class_names", use.class_names},
                     {"image_size", {use.height, use.width}},
                     {"channels", use.channels()},
                     {"data", use.data},
                     {"mean", use.mean},
                     {"std", use.deviation},
                     {"mask_values", use.mask_values},
                     {"mask_ignore", use.mask_ignore ? OrderedJson(*use.mask_ignore) : OrderedJson(nullptr)}}},
                   {"commit", d.commit}};
  if (with_run) {
    json["command"] = d.command;
    json["flags"] = d.flags;
  }
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

RunDescription parse_description(std::string_view text, const std::string& where) {
  const auto json = parse_object(text, where);
  const auto found = json.find("use");
  if (found == json.end() || !found->is_object()) throw Error(concat(where, " has no object \"use\""));
  const auto words = [&](const char* name) { return field_as<std::string>(*found, name, where); };
  const auto size = field_as<std::vector<std::int64_t>>(*found, "image_size", where);
  RunDescription d{.use = {.model = words("model"),
                           .options = field_as<std::map<std::string, std::string>>(*found, "options", where),
                           .classes = field_as<std::int64_t>(*found, "classes", where),
                           .class_names = field_as<std::vector<std::string>>(*found, "class_names", where),
                           .data = words("data"),
                           .mean = field_as<std::vector<double>>(*found, "mean", where),
                           .deviation = field_as<std::vector<double>>(*found, "std", where),
                           .mask_values = field_as<std::vector<int>>(*found, "mask_values", where)},
                   .commit = field_as<std::string>(json, "commit", where)};
  if (size.size() != 2 || size[0] < 1 || size[1] < 1 || d.use.classes < 1)
    throw Error(concat(where, ": the image size or the number of classes cannot be"));
  if (d.use.mean.empty() || d.use.mean.size() != d.use.deviation.size())
    throw Error(concat(where, ": it must have a mean and a deviation for each channel"));
  d.use.height = size[0];
  d.use.width = size[1];
  if (const auto ignore = found->find("mask_ignore"); ignore != found->end() && !ignore->is_null())
    d.use.mask_ignore = field_as<int>(*found, "mask_ignore", where);
  if (json.contains("command")) d.command = field_as<std::vector<std::string>>(json, "command", where);
  if (json.contains("flags")) d.flags = field_as<std::map<std::string, std::string>>(json, "flags", where);
  return d;
}

std::optional<RunDescription> find_description(const std::string& path) {
  if (is_file(path)) return path.ends_with(".index.json") ? find_description(parent_of(path)) : of_file(path);
  if (!is_folder(path)) return std::nullopt;
  if (is_file(join_path(path, checksums_file))) return of_checkpoint(path);
  if (is_file(join_path(path, "model.safetensors"))) return of_file(join_path(path, "model.safetensors"));
  auto names = list_folder(path);
  std::erase_if(names, [](const std::string& name) { return !step_of(name); });
  std::ranges::sort(names, std::greater{}, [](const std::string& name) { return *step_of(name); });
  for (const auto& name : names) {
    try {
      return of_checkpoint(join_path(path, name));
    } catch (const Error&) {
      // Whoever reads the weights will say that this one is damaged, and take the next one, too.
    }
  }
  return std::nullopt;
}

}  // namespace tessera
