// Names and checksums of a checkpoint's files: what writing and finding checkpoints share.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "tessera/io/file.h"

namespace tessera {

inline constexpr const char* index_suffix = ".safetensors.index.json";
inline constexpr const char* run_state_file = "run_state.json";
inline constexpr const char* checksums_file = "checksums.json";
inline constexpr const char* part_suffix = ".part";
inline constexpr const char* gone_suffix = ".gone";

/// "step-000120"
std::string checkpoint_name(std::int64_t step);
/// The step, if this is the name of a checkpoint.
std::optional<std::int64_t> step_of(const std::string& name);

nlohmann::ordered_json sums_json(const std::map<std::string, FileSum>& sums);
/// Throws Error, which names `file`.
std::map<std::string, FileSum> parse_sums(const nlohmann::json& json, const std::string& file);
/// Of a checkpoint: checksums.json, with everything in it that a checkpoint must have.
std::map<std::string, FileSum> read_sums(const std::string& folder);

/// Throws Error, which names the file, unless all are there and in full length.
void check_sizes(const std::string& folder);

}  // namespace tessera
