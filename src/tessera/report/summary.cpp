#include <fmt/format.h>

#include <algorithm>

#include "tessera/report/markup.h"
#include "tessera/report/sections.h"

namespace tessera::report {
namespace {

std::string cell(const std::string& text) { return fmt::format("<td>{}</td>", escaped(text)); }

std::string image_of(const Json& plan) {
  const Json& image = list_at(plan, {"image"});
  return image.size() == 3 ? fmt::format("{}x{}", image[1].dump(), image[2].dump()) : std::string();
}

std::string percent(const std::optional<double>& share) { return share ? fmt::format("{:.1f} %", 100 * *share) : ""; }

std::optional<double> best_of(const RunDocuments& run, const std::string& metric) {
  const Curve curve = curve_of(run, metric);
  if (curve.values.empty()) return std::nullopt;
  return *std::max_element(curve.values.begin(), curve.values.end());
}

double median_speed(const RunDocuments& run) {
  if (const auto speed = number_at(run.run, {"images_per_second", "median"})) return *speed;
  std::vector<double> values = curve_of(run, "speed/images_per_second").values;
  if (values.size() > 1) values.erase(values.begin());  // the first step also pays for memory
  if (values.empty()) return 0;
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

double peak_of(const RunDocuments& run) {
  double most = last_of(run, "memory/peak_bytes").value_or(0);
  for (const Json& bytes : list_at(run.run, {"peak_bytes"}))
    if (bytes.is_number()) most = std::max(most, bytes.get<double>());
  return most;
}

}  // namespace

std::optional<double> last_of(const RunDocuments& run, const std::string& metric) {
  const Curve curve = curve_of(run, metric);
  if (curve.values.empty()) return std::nullopt;
  return curve.values.back();
}

std::string summary(const Runs& runs) {
  std::string rows;
  const bool any_iou = std::any_of(runs.begin(), runs.end(),
                                   [](const RunDocuments& run) { return last_of(run, "val/mean_iou").has_value(); });
  for (std::size_t r = 0; r < runs.size(); ++r) {
    const RunDocuments& run = runs[r];
    if (run.run.is_object() && run.run.contains("scaling")) continue;  // no run
    const Json plan = run.run.is_object() ? run.run.value("plan", Json()) : Json();
    const Curve loss = curve_of(run, "train/loss");
    const double speed = median_speed(run), peak = peak_of(run);
    rows += fmt::format("<tr><th class='s{}'><i></i>{}</th>", r % 8, escaped(run.name));
    rows += cell(text_at(run.run, {"model"})) + cell(image_of(plan)) + cell(plan.is_object() ? plan_words(plan) : "");
    rows += cell(loss.steps.empty() ? "" : fmt::format("{:.0f}", loss.steps.back()));
    rows += cell(loss.values.empty() ? "" : short_number(loss.values.back()));
    rows += cell(percent(best_of(run, "val/accuracy")));
    if (any_iou) rows += cell(percent(best_of(run, "val/mean_iou")));
    rows += cell(speed > 0 ? short_number(speed) : "") + cell(peak > 0 ? short_bytes(peak) : "");
    rows += cell(text_at(run.run, {"state"})) + "</tr>";
  }
  if (rows.empty()) return "";
  std::string commands;
  for (const RunDocuments& run : runs) {
    std::string line;
    for (const Json& word : list_at(run.run, {"command"}))
      if (word.is_string()) line += (line.empty() ? "" : " ") + word.get<std::string>();
    const std::string host = text_at(run.run, {"machine", "host"}), commit = text_at(run.run, {"tessera", "commit"});
    if (!line.empty())
      commands += fmt::format(
          "<p class='note'>{}{}</p><pre>{}</pre>", escaped(run.name),
          escaped(fmt::format("{}{}", host.empty() ? "" : " on " + host, commit.empty() ? "" : ", Tessera " + commit)),
          escaped(line));
  }
  return fmt::format(
      "<div class='wide'><table id='summary'><thead><tr><th>run</th><th>network</th><th>images</th><th>plan</th>"
      "<th>steps</th><th>last loss</th><th>best accuracy</th>{}<th>images/s</th>"
      "<th>peak memory</th><th>state</th></tr></thead><tbody>{}</tbody></table></div>{}\n",
      any_iou ? "<th>best mean IoU</th>" : "", rows,
      commands.empty() ? "" : "<details><summary>Commands</summary>" + commands + "</details>");
}

}  // namespace tessera::report
