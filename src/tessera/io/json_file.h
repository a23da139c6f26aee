// Documents that appear whole or not at all.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace tessera {

/// Writes a temporary file and renames it. Throws Error.
void write_json(const std::string& path, const nlohmann::ordered_json& document);

}  // namespace tessera
