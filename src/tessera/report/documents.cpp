#include "tessera/report/documents.h"

#include <cmath>

namespace tessera::report {
namespace {

const Json* find(const Json& document, const std::vector<std::string>& path) {
  const Json* here = &document;
  for (const auto& name : path) {
    if (!here->is_object()) return nullptr;
    const auto found = here->find(name);
    if (found == here->end()) return nullptr;
    here = &*found;
  }
  return here;
}

// The names that `steps` and `evaluations` of a document have for a metric.
std::string name_in_document(const std::string& metric) {
  if (metric == "speed/step_seconds") return "seconds";
  if (metric == "speed/data_wait_seconds") return "data_seconds";
  return metric.substr(metric.find('/') + 1);
}

Curve from_document(const Json& run, const std::string& metric) {
  Curve curve;
  const bool validation = metric.starts_with("val/");
  const double batch = number_at(run, {"plan", "global_batch"}).value_or(0);
  std::vector<double> ends;  // seconds since the start, by step
  double seconds = 0;
  for (const Json& step : list_at(run, {"steps"})) ends.push_back(seconds += number_at(step, {"seconds"}).value_or(0));
  const Json& lines = list_at(run, {validation ? "evaluations" : "steps"});
  const double first = number_at(list_at(run, {"steps"}).empty() ? Json() : run["steps"][0], {"step"}).value_or(1);
  for (const Json& line : lines) {
    auto value = number_at(line, {name_in_document(metric)});
    if (metric == "speed/images_per_second")
      if (const auto s = number_at(line, {"seconds"}); s && *s > 0) value = batch / *s;
    const auto step = number_at(line, {"step"});
    if (!value || !step) continue;
    const auto index = static_cast<std::size_t>(std::max(0.0, *step - first));
    curve.steps.push_back(*step);
    curve.seconds.push_back(index < ends.size() ? ends[index] : seconds);
    curve.values.push_back(*value);
  }
  return curve;
}

}  // namespace

std::optional<double> number_at(const Json& document, const std::vector<std::string>& path) {
  const Json* found = find(document, path);
  if (!found || !found->is_number() || !std::isfinite(found->get<double>())) return std::nullopt;
  return found->get<double>();
}

std::string text_at(const Json& document, const std::vector<std::string>& path) {
  const Json* found = find(document, path);
  return found && found->is_string() ? found->get<std::string>() : std::string();
}

const Json& list_at(const Json& document, const std::vector<std::string>& path) {
  static const Json none = Json::array();
  const Json* found = find(document, path);
  return found && found->is_array() ? *found : none;
}

Curve curve_of(const RunDocuments& run, const std::string& metric) {
  if (run.metrics.empty()) return from_document(run.run, metric);
  Curve curve;
  std::optional<double> start, last;
  double pauses = 0;  // between a run that stopped and the one that went on from it
  for (const Json& line : run.metrics) {
    const auto step = number_at(line, {"step"}), time = number_at(line, {"time"});
    if (!step || !time) continue;
    const double seconds = number_at(line, {"speed/step_seconds"}).value_or(0);
    if (!start) start = *time - seconds;
    // A step that began long after the one before it had ended: nobody trained in between.
    if (last && *time - seconds - *last > 60 + 10 * seconds) pauses += *time - seconds - *last;
    last = *time;
    const auto value = number_at(line, {metric});
    if (!value) continue;
    curve.steps.push_back(*step);
    curve.seconds.push_back(*time - *start - pauses);
    curve.values.push_back(*value);
  }
  return curve;
}

}  // namespace tessera::report
