#include "tessera/report/chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "tessera/report/markup.h"

namespace tessera::report {
namespace {

constexpr std::size_t most_points = 400;

double rounded(double value) { return value == 0 ? 0 : std::stod(fmt::format("{:.6g}", value)); }

std::string data_of(const std::vector<Series>& series, const std::string& unit) {
  nlohmann::json out{{"unit", unit}, {"series", nlohmann::json::array()}};
  for (const Series& s : series) {
    if (s.faint) continue;
    nlohmann::json x = nlohmann::json::array(), y = nlohmann::json::array();
    for (const double value : s.x) x.push_back(rounded(value));
    for (const double value : s.y) y.push_back(rounded(value));
    out["series"].push_back({{"name", s.name}, {"colour", s.colour}, {"x", x}, {"y", y}});
  }
  return escaped(out.dump());
}

std::string axis_number(double value, const std::string& unit) {
  return unit == "seconds" && value > 0 ? short_seconds(value) : short_number(value);
}

}  // namespace

Series thinned(const Series& series, std::size_t most) {
  if (series.x.size() <= most) return series;
  Series out = series;
  out.x.clear();
  out.y.clear();
  const std::size_t stretches = most / 2, count = series.x.size();
  for (std::size_t s = 0; s < stretches; ++s) {
    const auto begin = static_cast<std::ptrdiff_t>(s * count / stretches);
    const auto end = static_cast<std::ptrdiff_t>((s + 1) * count / stretches);
    const auto [least, greatest] = std::minmax_element(series.y.begin() + begin, series.y.begin() + end);
    auto first = std::min(least, greatest) - series.y.begin(), second = std::max(least, greatest) - series.y.begin();
    for (const auto i : {first, second}) {
      out.x.push_back(series.x[static_cast<std::size_t>(i)]);
      out.y.push_back(series.y[static_cast<std::size_t>(i)]);
      if (first == second) break;
    }
  }
  // The ends are what people read off.
  if (out.x.back() != series.x.back()) {
    out.x.push_back(series.x.back());
    out.y.push_back(series.y.back());
  }
  return out;
}

Series smoothed(const Series& series, std::size_t window) {
  Series out = series;
  double sum = 0;
  for (std::size_t i = 0; i < series.y.size(); ++i) {
    sum += series.y[i];
    if (i >= window) sum -= series.y[i - window];
    out.y[i] = sum / static_cast<double>(std::min(i + 1, window));
  }
  return out;
}

std::string line_chart(const ChartOptions& options, const std::vector<Series>& all) {
  std::vector<Series> series;
  std::vector<double> every_x, every_y;
  for (const Series& s : all) {
    if (s.x.empty()) continue;
    series.push_back(thinned(s, most_points));
    every_x.insert(every_x.end(), s.x.begin(), s.x.end());
    every_y.insert(every_y.end(), s.y.begin(), s.y.end());
  }
  if (series.empty()) return "";
  const auto [first, last] = std::minmax_element(every_x.begin(), every_x.end());
  constexpr double width = 440, height = 240, left = 48, right = 22, top = 10, bottom = 30;
  Scale across{*first, *last > *first ? *last : *first + 1, left, width - right};
  const Scale up = scale_for(every_y, height - bottom, top, options.from_zero);
  std::string inside;
  for (const double value : ticks(up.low, up.high, 4)) {
    inside += line(left, up(value), width - right, up(value), "class='grid'");
    inside += words(left - 6, up(value) + 4, short_number(value), "class='axis end'");
  }
  for (const double value : ticks(across.low, across.high, 5))
    inside += words(across(value), height - bottom + 16, axis_number(value, options.x_unit), "class='axis middle'");
  inside += words(width - right, height - 2, options.x_unit, "class='axis end'");
  for (const Series& s : series) {
    std::vector<double> x, y;
    for (std::size_t i = 0; i < s.x.size(); ++i) {
      x.push_back(across(s.x[i]));
      y.push_back(up(s.y[i]));
    }
    inside += polyline(x, y,
                       fmt::format("class='curve s{}{}'", s.colour % 8,
                                   s.faint  ? " faint"
                                   : s.dots ? " dashed"
                                            : ""));
    if (s.dots || s.x.size() == 1)
      for (std::size_t i = 0; i < x.size(); ++i)
        inside += fmt::format("<circle cx='{}' cy='{}' r='3.5' class='s{}'><title>{}: {}</title></circle>", at(x[i]),
                              at(y[i]), s.colour % 8, escaped(s.name), short_number(s.y[i]));
  }
  inside += "<line class='cursor' y1='10' y2='210'/>";
  return svg(width, height, options.title, inside,
             fmt::format("class='chart' data-low='{}' data-high='{}' data-series='{}'", across.low, across.high,
                         data_of(series, options.x_unit)));
}

}  // namespace tessera::report
