#include "run_documents.h"

#include "tessera/base/error.h"
#include "tessera/io/file.h"

namespace tessera {
namespace {

using report::Json;

// A document that is just being written, or is no JSON, counts as not there: the page shows the rest.
Json document(const std::string& path) {
  if (!is_file(path)) return nullptr;
  Json json = Json::parse(read_text(path), nullptr, /*allow_exceptions=*/false);
  return json.is_discarded() ? Json(nullptr) : json;
}

std::vector<Json> lines_of(const std::string& path) {
  std::vector<Json> lines;
  if (!is_file(path)) return lines;
  const std::string all = read_text(path);
  for (std::size_t begin = 0, end; (end = all.find('\n', begin)) != std::string::npos; begin = end + 1) {
    Json line = Json::parse(all.begin() + static_cast<std::ptrdiff_t>(begin),
                            all.begin() + static_cast<std::ptrdiff_t>(end), nullptr, /*allow_exceptions=*/false);
    if (line.is_object()) lines.push_back(std::move(line));
  }
  return lines;
}

// Where the log is: the folder itself, or the one that --run made in it.
std::string log_folder(const std::string& path) {
  for (const std::string& folder : {path, join_path(path, "log")})
    for (const char* name : {"metrics.jsonl", "run.json"})
      if (is_file(join_path(folder, name))) return folder;
  throw UsageError(concat("there is no log of a run in ", path,
                          "; name the folder of a --log-dir or --run, or a document of --json"));
}

std::string without_slash(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path;
}

}  // namespace

std::string data_uri(const std::string& path) {
  static constexpr char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const std::string bytes = read_text(path);
  std::string out = path.ends_with(".png") ? "data:image/png;base64," : "data:image/jpeg;base64,";
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t three = 0;
    for (std::size_t k = 0; k < 3; ++k)
      three = three << 8 | (i + k < bytes.size() ? static_cast<unsigned char>(bytes[i + k]) : 0U);
    for (std::size_t k = 0; k < 4; ++k) out += i + k <= bytes.size() ? letters[three >> (18 - 6 * k) & 63] : '=';
  }
  return out;
}

report::RunDocuments read_run(const std::string& path) {
  report::RunDocuments run{.name = without_slash(path)};
  if (is_file(path)) {
    run.run = document(path);
    require(run.run.is_object() && (run.run.contains("plan") || run.run.contains("scaling")), path,
            " is no document of `tessera train --json`, `tessera bench --json` or `tessera plan --scaling --json`");
    if (run.run.contains("evaluation")) run.evaluation = run.run["evaluation"];
    return run;
  }
  require(is_folder(path), "there is no run ", path,
          "; name the folder of a --log-dir or --run, or a document of --json");
  const std::string folder = log_folder(path);
  run.run = document(join_path(folder, "run.json"));
  run.metrics = lines_of(join_path(folder, "metrics.jsonl"));
  run.evaluation = document(join_path(folder, "evaluation.json"));
  run.timeline = document(join_path(folder, "timeline.json"));
  run.samples = document(join_path(folder, "samples.json"));
  if (run.samples.is_object() && run.samples.contains("samples"))
    for (Json& sample : run.samples["samples"])
      for (const char* kind : {"picture", "mask", "truth"})
        if (const std::string file = report::text_at(sample, {kind}); !file.empty()) {
          const std::string whole = join_path(folder, file);
          sample[kind] = is_file(whole) ? data_uri(whole) : std::string();
        }
  return run;
}

}  // namespace tessera
