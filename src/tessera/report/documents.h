// What a run has left behind, as the report reads it: JSON documents, whichever of them there are. docs/files.md
// describes each. Nothing here opens a file.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace tessera::report {

using Json = nlohmann::json;

/// One run. A document that is not there is null.
struct RunDocuments {
  std::string name;           ///< what the user called it: its path
  Json run;                   ///< run.json, or the document of `train --json` and `bench --json`
  std::vector<Json> metrics;  ///< lines of metrics.jsonl
  Json evaluation;            ///< evaluation.json: the newest evaluation
  Json timeline;              ///< timeline.json: the newest step that was put down
  Json samples;  ///< samples.json; each has its picture as a data URI under "picture" (and "mask", "truth")
};

/// A number deep inside a document, if it is there: number_at(run, {"images_per_second", "median"}).
std::optional<double> number_at(const Json& document, const std::vector<std::string>& path);
/// Text deep inside a document; empty if it is not there.
std::string text_at(const Json& document, const std::vector<std::string>& path);
/// An array deep inside a document; an empty one if it is not there.
const Json& list_at(const Json& document, const std::vector<std::string>& path);

/// Of metrics.jsonl, or of the document's steps where there is none: one metric by step and by seconds since the start.
struct Curve {
  std::vector<double> steps, seconds, values;
};
Curve curve_of(const RunDocuments& run, const std::string& metric);

}  // namespace tessera::report
