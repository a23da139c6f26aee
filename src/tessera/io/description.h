// What weights are, for whoever uses them later: checkpoints and exported files carry it, so that `tessera eval RUN`
// needs no other flag. Flags of a use that say something else are then contradictions, not silent mistakes.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// The network, and what its images looked like when it was trained.
struct NetworkUse {
  std::string model;                           ///< --model
  std::map<std::string, std::string> options;  ///< of the network, by flag without dashes: {"depth", "8"}
  std::int64_t classes = 0;
  std::vector<std::string> class_names;  ///< empty: they have numbers only
  std::int64_t height = 0, width = 0;
  std::string data;                     ///< --app: medical (image files), cifar or synthetic
  std::vector<double> mean, deviation;  ///< by channel: pixels are (value - mean) / deviation, of integers in [0, 1]
  std::vector<int> mask_values;         ///< --mask-values; empty: a pixel's value is its class
  std::optional<int> mask_ignore;
  std::int64_t channels() const { return static_cast<std::int64_t>(mean.size()); }
  friend bool operator==(const NetworkUse&, const NetworkUse&) = default;
};

struct RunDescription {
  NetworkUse use;
  std::vector<std::string> command;          ///< as it was typed
  std::map<std::string, std::string> flags;  ///< those given that decide what is trained, and how; paths are absolute
  std::string commit;                        ///< of Tessera
  friend bool operator==(const RunDescription&, const RunDescription&) = default;
};

/// A JSON object; `with_run`: with command and flags, too. Equal runs export equal files, so those go without.
std::string to_json(const RunDescription& description, bool with_run);
/// Throws Error, which names `where`.
RunDescription parse_description(std::string_view json, const std::string& where);

/// Of a safetensors file, of a checkpoint, or of the newest checkpoint in a folder whose run state is undamaged.
/// Nothing where there is none: files of others, and checkpoints of older versions. The weights are not looked at.
std::optional<RunDescription> find_description(const std::string& path);

/// The key of a safetensors file's metadata.
inline constexpr const char* description_key = "tessera";

}  // namespace tessera
