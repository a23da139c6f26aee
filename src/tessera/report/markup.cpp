#include "tessera/report/markup.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tessera/base/text.h"

namespace tessera::report {

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  return out;
}

std::string short_number(double value) {
  const double size = std::abs(value);
  if (value == 0) return "0";
  if (size < 1e-3) return fmt::format("{:.2g}", value);
  if (size < 1e4) return fmt::format("{:.{}g}", value, size < 1000 ? 3 : 4);
  if (size < 1e6) return fmt::format("{:.3g}k", value / 1e3);
  if (size < 1e9) return fmt::format("{:.3g}M", value / 1e6);
  return fmt::format("{:.3g}G", value / 1e9);
}

std::string short_bytes(double bytes) { return human_bytes(static_cast<std::int64_t>(bytes)); }

std::string short_seconds(double seconds) {
  if (seconds < 1e-3) return fmt::format("{:.0f} µs", 1e6 * seconds);
  if (seconds < 1) return fmt::format("{:.3g} ms", 1e3 * seconds);
  if (seconds < 100) return fmt::format("{:.3g} s", seconds);
  return human_seconds(seconds);
}

std::string at(double coordinate) {
  std::string text = fmt::format("{:.1f}", coordinate);
  if (text.ends_with(".0")) text.resize(text.size() - 2);
  return text == "-0" ? "0" : text;
}

std::vector<double> ticks(double low, double high, int count) {
  if (!(high > low)) return {low};
  const double raw = (high - low) / count, power = std::pow(10, std::floor(std::log10(raw)));
  const double step = power * (raw / power <= 1.5 ? 1 : raw / power <= 3.5 ? 2 : raw / power <= 7.5 ? 5 : 10);
  std::vector<double> out;
  for (double k = std::ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; ++k) out.push_back(k * step);
  return out;
}

Scale scale_for(const std::vector<double>& values, double begin, double end, bool from_zero) {
  Scale scale{0, 1, begin, end};
  if (!values.empty()) {
    const auto [least, most] = std::minmax_element(values.begin(), values.end());
    scale.low = from_zero ? std::min(0.0, *least) : *least;
    scale.high = *most;
  }
  if (!(scale.high > scale.low)) {
    const double room = std::max(1e-9, std::abs(scale.high) * 0.1);
    scale.high += room;
    if (!from_zero) scale.low -= room;
  }
  // Up to the next round number, so that the topmost value has a line above it.
  const auto marks = ticks(scale.low, scale.high, 4);
  const double step = marks.size() > 1 ? marks[1] - marks[0] : scale.high - scale.low;
  scale.high = std::ceil(scale.high / step - 1e-9) * step;
  scale.low = std::floor(scale.low / step + 1e-9) * step;
  return scale;
}

std::string line(double x1, double y1, double x2, double y2, const std::string& attributes) {
  return fmt::format("<line x1='{}' y1='{}' x2='{}' y2='{}' {}/>", at(x1), at(y1), at(x2), at(y2), attributes);
}

std::string rectangle(double x, double y, double width, double height, const std::string& attributes,
                      const std::string& title) {
  const std::string head = fmt::format("<rect x='{}' y='{}' width='{}' height='{}' {}", at(x), at(y),
                                       at(std::max(0.0, width)), at(std::max(0.0, height)), attributes);
  return title.empty() ? head + "/>" : fmt::format("{}><title>{}</title></rect>", head, escaped(title));
}

std::string words(double x, double y, const std::string& text, const std::string& attributes) {
  return fmt::format("<text x='{}' y='{}' {}>{}</text>", at(x), at(y), attributes, escaped(text));
}

std::string polyline(const std::vector<double>& x, const std::vector<double>& y, const std::string& attributes) {
  std::string points;
  for (std::size_t i = 0; i < x.size(); ++i) points += (i ? " " : "") + at(x[i]) + "," + at(y[i]);
  return fmt::format("<polyline points='{}' {}/>", points, attributes);
}

std::string svg(double width, double height, const std::string& label, const std::string& inside,
                const std::string& attributes) {
  return fmt::format("<svg viewBox='0 0 {} {}' role='img' aria-label='{}' {}>{}</svg>", at(width), at(height),
                     escaped(label), attributes, inside);
}

std::string card(const std::string& title, const std::string& inside, const std::string& attributes) {
  return fmt::format("<section class='card' {}><h3>{}</h3>{}</section>\n", attributes, escaped(title), inside);
}

std::string legend(const std::vector<std::string>& names) {
  std::string out = "<div class='legend'>";
  for (std::size_t i = 0; i < names.size(); ++i)
    out += fmt::format("<span class='s{}'><i></i>{}</span>", i % 8, escaped(names[i]));
  return out + "</div>";
}

}  // namespace tessera::report
