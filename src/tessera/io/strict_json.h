// JSON of files that may be damaged or hostile. Not for headers of the library: nlohmann's is large.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace tessera {

/// Throws Error, which names the file, if it is no JSON object or one that names a key twice.
nlohmann::json parse_object(std::string_view text, const std::string& file);

/// The field as a T. Throws Error, which names file and field, if it is missing or something else.
template <class T>
T field(const nlohmann::json& object, const char* name, const std::string& file);

/// For one's own documents: text that is no UTF-8 (a file's name, say) does not stop the writing.
std::string to_text(const nlohmann::ordered_json& document);

}  // namespace tessera
