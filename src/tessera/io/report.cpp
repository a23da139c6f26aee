#include "tessera/io/report.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "tessera/base/error.h"
#include "tessera/io/build_info.h"
#include "tessera/io/json_file.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

std::string first_line_with(const char* file, const std::string& key) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);)
    if (line.starts_with(key)) {
      const auto colon = line.find(':');
      const auto begin = colon == std::string::npos ? colon : line.find_first_not_of(" \t", colon + 1);
      return begin == std::string::npos ? "" : line.substr(begin);
    }
  return "";
}

Json machine_json() {
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  return {{"host", host},
          {"cpu", first_line_with("/proc/cpuinfo", "model name")},
          {"cores", std::thread::hardware_concurrency()},
          {"memory", first_line_with("/proc/meminfo", "MemTotal")}};
}

Json build_json() {
  const BuildInfo b = build_info();
  return {{"version", b.version}, {"commit", b.commit}, {"compiler", b.compiler}};
}

Json plan_json(const Plan& plan, const Graph& graph) {
  Json stages = Json::array();
  for (const auto& stage : plan.stages)
    stages.push_back({{"first_node", graph.nodes()[static_cast<std::size_t>(stage.first_node)].name},
                      {"last_node", graph.nodes()[static_cast<std::size_t>(stage.end_node - 1)].name},
                      {"grid", {stage.grid.rows, stage.grid.columns}},
                      {"batch_ways", stage.batch_ways},
                      {"ranks", stage.ranks}});
  const Shape& image = graph.nodes()[0].shape;
  return {{"image", {image.channels, image.height, image.width}},
          {"batch_size", plan.batch_size},
          {"global_batch", plan.global_batch()},
          {"parts", plan.parts},
          {"micros", plan.micros()},
          {"replicas", plan.replicas},
          {"directions", plan.directions()},
          {"times", plan.times},
          {"schedule", to_string(plan.schedule)},
          {"fused_layers", plan.fused_layers},
          {"batch_norm", to_string(plan.batch_norm)},
          {"grad_sync", to_string(plan.grad_sync)},
          {"ranks", plan.ranks()},
          {"stages", stages}};
}

Json parts_json(const std::vector<PartSeconds>& ranks) {
  Json out = Json::array();
  for (const auto& parts : ranks) {
    Json rank;
    for (std::size_t p = 0; p < parts.size(); ++p) rank[std::string(part_names[p])] = parts[p];
    out.push_back(rank);
  }
  return out;
}

// JSON has no infinity; null stands for it.
Json number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

}  // namespace

void write_json(const std::string& path, const Json& document) {
  const std::string temporary = path + ".part";
  {
    std::ofstream out(temporary);
    out << document.dump(2) << '\n';
    out.close();
    if (!out) {
      std::remove(temporary.c_str());
      throw Error(concat("could not write ", path, "; is the disk full?"));
    }
  }
  if (std::rename(temporary.c_str(), path.c_str()) != 0)
    throw Error(concat("could not write ", path, ": ", std::strerror(errno)));
}

BuildInfo build_info() { return {TESSERA_VERSION, TESSERA_COMMIT, TESSERA_COMPILER, TESSERA_SANITIZERS}; }

Spread spread_of(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const auto at = [&](double share) {
    return values[static_cast<std::size_t>(std::lround(share * static_cast<double>(values.size() - 1)))];
  };
  return {at(0.1), at(0.5), at(0.9)};
}

Spread images_per_second(const std::vector<StepReport>& steps, std::int64_t batch_size) {
  std::vector<double> speeds;
  for (std::size_t i = steps.size() > 1 ? 1 : 0; i < steps.size(); ++i)
    speeds.push_back(static_cast<double>(batch_size) / steps[i].seconds);
  return spread_of(std::move(speeds));
}

void check_writable(const std::string& flag, const std::string& path) {
  if (path.empty()) return;
  const std::string temporary = path + ".part";
  const bool good = std::ofstream(temporary).good();
  std::remove(temporary.c_str());
  struct stat found {};
  const bool folder = stat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode);
  require(good && !folder, flag, " ", path, ": cannot write there; the folder must exist and be writable");
}

void write_report(const std::string& path, const RunReport& r, const Plan& plan, const Graph& graph) {
  const Spread speed = images_per_second(r.steps, plan.global_batch());
  Json steps = Json::array();
  for (const auto& s : r.steps)
    steps.push_back({{"step", s.step + 1},
                     {"epoch", s.epoch + 1},
                     {"loss", s.loss},
                     {"seconds", s.seconds},
                     {"data_seconds", s.part(Part::data)},
                     {"learning_rate", s.learning_rate}});
  write_json(path, {{"tessera", build_json()},
                    {"machine", machine_json()},
                    {"command", r.command},
                    {"model", r.model},
                    {"dtype", r.dtype},
                    {"threads", r.threads},
                    {"trainable_parameters", graph.trainable_elements()},
                    {"plan", plan_json(plan, graph)},
                    {"images_per_second", {{"median", speed.median}, {"p10", speed.low}, {"p90", speed.high}}},
                    {"peak_bytes", r.peak_bytes},
                    {"rank_seconds", r.rank_seconds},
                    {"rank_parts", parts_json(r.rank_parts)},
                    {"peak_resident_bytes", peak_resident_bytes()},
                    {"steps", steps}});
}

void write_plan(const std::string& path, const Plan& plan, const Graph& graph) {
  write_json(path, {{"tessera", build_json()}, {"plan", plan_json(plan, graph)}});
}

void write_verification(const std::string& path, const VerifyReport& r, const Plan& plan, const Graph& graph) {
  Json differences = Json::array();
  for (const auto& d : r.differences)
    differences.push_back({{"what", d.what}, {"step", d.step + 1}, {"relative", number(d.relative)}});
  write_json(path, {{"tessera", build_json()},
                    {"machine", machine_json()},
                    {"plan", plan_json(plan, graph)},
                    {"passed", r.passed},
                    {"tolerance", r.tolerance},
                    {"largest", number(r.largest)},
                    {"tensors_compared", r.compared},
                    {"differences", differences}});
}

}  // namespace tessera
