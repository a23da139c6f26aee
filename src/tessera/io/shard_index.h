// Which tensor is in which file: *.safetensors.index.json, the Hugging Face convention. Knows no torch.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace tessera {

/// What an index file holds. Throws Error, also if a file's name would lead out of the folder.
std::map<std::string, std::string> parse_index(std::string_view json, const std::string& file);
std::string index_text(const std::map<std::string, std::string>& file_of, std::int64_t total_bytes);

}  // namespace tessera
