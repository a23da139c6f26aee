#include "tessera/io/strict_json.h"

#include <cstdint>
#include <set>
#include <vector>

#include "tessera/base/error.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

template <class T>
bool holds(const Json& value) {
  if constexpr (std::is_same_v<T, std::string>)
    return value.is_string();
  else if constexpr (std::is_same_v<T, std::uint64_t>)
    return value.is_number_unsigned();
  else  // numbers above the largest int64 are refused, not wrapped around
    return value.is_number_integer() && !(value.is_number_unsigned() && value.get<std::uint64_t>() > INT64_MAX);
}

}  // namespace

Json parse_object(std::string_view text, const std::string& file) {
  std::vector<std::set<std::string>> open_objects;
  const auto no_key_twice = [&](int, Json::parse_event_t event, Json& value) {
    if (event == Json::parse_event_t::object_start) open_objects.emplace_back();
    if (event == Json::parse_event_t::object_end) open_objects.pop_back();
    if (event == Json::parse_event_t::key && !open_objects.back().insert(value.get<std::string>()).second)
      throw Error(concat(file, ": the key \"", value.get<std::string>(), "\" stands there twice"));
    return true;
  };
  Json parsed;
  try {
    parsed = Json::parse(text.begin(), text.end(), no_key_twice);
  } catch (const Json::exception& error) {
    throw Error(concat(file, " does not hold JSON as it should: ", error.what()));
  }
  if (!parsed.is_object()) throw Error(concat(file, " does not hold a JSON object"));
  return parsed;
}

template <class T>
T field(const Json& object, const char* name, const std::string& file) {
  const auto found = object.find(name);
  if (found == object.end()) throw Error(concat(file, " has no field \"", name, "\""));
  if (!holds<T>(*found))  // what it is in full may be nested without end
    throw Error(concat(file, ": the field \"", name, "\" is ",
                       found->is_structured() ? std::string(found->type_name()) : found->dump(), ", which is not ",
                       std::is_same_v<T, std::string> ? "text" : "a whole number in range"));
  return found->get<T>();
}
template std::string field<std::string>(const Json&, const char*, const std::string&);
template std::int64_t field<std::int64_t>(const Json&, const char*, const std::string&);
template std::uint64_t field<std::uint64_t>(const Json&, const char*, const std::string&);

std::string to_text(const nlohmann::ordered_json& document) {
  return document.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace tessera
