#include "tessera/io/shard_index.h"

#include "tessera/base/error.h"
#include "tessera/io/strict_json.h"

namespace tessera {

std::map<std::string, std::string> parse_index(std::string_view json, const std::string& file) {
  const auto parsed = parse_object(json, file);
  const auto map = parsed.find("weight_map");
  if (map == parsed.end() || !map->is_object()) throw Error(file + " has no object \"weight_map\"");
  std::map<std::string, std::string> file_of;
  for (const auto& [tensor, name] : map->items()) {
    if (!name.is_string()) throw Error(concat(file, ": the file of the tensor '", tensor, "' is not text"));
    const auto text = name.get<std::string>();
    if (text.empty() || text.starts_with('.') || text.find('/') != std::string::npos ||
        text.find('\0') != std::string::npos)
      throw Error(
          concat(file, ": the tensor '", tensor, "' is said to be in '", text, "', which is no file beside it"));
    file_of.emplace(tensor, text);
  }
  return file_of;
}

std::string index_text(const std::map<std::string, std::string>& file_of, std::int64_t total_bytes) {
  nlohmann::ordered_json map = nlohmann::ordered_json::object();
  for (const auto& [name, file] : file_of) map.push_back({name, file});
  return to_text({{"metadata", {{"total_size", total_bytes}}}, {"weight_map", std::move(map)}});
}

}  // namespace tessera
