#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tessera/report/markup.h"
#include "tessera/report/sections.h"

namespace tessera::report {
namespace {

// Ranks and images/s double, so their axes do: a straight line is a rate that keeps up.
struct RankCurve {
  std::string name;
  std::vector<double> ranks, values;
  std::vector<std::string> titles;
  bool ideal = false;  // what a perfect machine would do
};

constexpr double box_width = 440, box_height = 260, box_left = 56, box_right = 16, box_top = 12, box_bottom = 34;

std::string number_of_ranks(double value) { return fmt::format("{:.0f}", value); }

std::string scaling_axes(const Scale& across, const Scale& up, const std::vector<double>& rank_ticks,
                         bool logarithmic) {
  std::string out;
  for (const double value : ticks(up.low, up.high, 4)) {
    out += line(box_left, up(value), box_width - box_right, up(value), "class='grid'");
    out += words(box_left - 6, up(value) + 4, short_number(logarithmic ? std::exp2(value) : value), "class='axis end'");
  }
  // As many numbers as there is room for.
  const std::size_t every = rank_ticks.size() / 8 + 1;
  for (std::size_t i = 0; i < rank_ticks.size(); i += every)
    out += words(across(std::log2(rank_ticks[i])), box_height - box_bottom + 16, number_of_ranks(rank_ticks[i]),
                 "class='axis middle'");
  return out + words(box_width - box_right, box_height - 2, "ranks", "class='axis end'");
}

std::string scaling_chart(const std::string& label, const std::vector<RankCurve>& curves, bool logarithmic) {
  std::vector<double> all, rank_ticks;
  for (const RankCurve& c : curves)
    for (std::size_t i = 0; i < c.values.size(); ++i) {
      all.push_back(logarithmic ? std::log2(c.values[i]) : c.values[i]);
      rank_ticks.push_back(c.ranks[i]);
    }
  if (all.empty()) return "";
  std::sort(rank_ticks.begin(), rank_ticks.end());
  rank_ticks.erase(std::unique(rank_ticks.begin(), rank_ticks.end()), rank_ticks.end());
  const double first = std::log2(rank_ticks.front()), last = std::log2(rank_ticks.back());
  const Scale across{first, last > first ? last : first + 1, box_left, box_width - box_right};
  const Scale up = scale_for(all, box_height - box_bottom, box_top, !logarithmic);
  std::string inside = scaling_axes(across, up, rank_ticks, logarithmic);
  std::size_t colour = 0;
  for (const RankCurve& c : curves) {
    std::vector<double> x, y;
    for (std::size_t i = 0; i < c.values.size(); ++i) {
      x.push_back(across(std::log2(c.ranks[i])));
      y.push_back(up(logarithmic ? std::log2(c.values[i]) : c.values[i]));
    }
    const std::string look = fmt::format("class='curve s{}{}'", colour % 8, c.ideal ? " dashed faint" : "");
    inside += polyline(x, y, look);
    for (std::size_t i = 0; i < c.titles.size(); ++i)
      inside += fmt::format("<circle cx='{}' cy='{}' r='3.5' class='s{}'><title>{}</title></circle>", at(x[i]),
                            at(y[i]), colour % 8, escaped(c.titles[i]));
    if (!c.ideal) ++colour;
  }
  return svg(box_width, box_height, label, inside);
}

std::string point_title(const std::string& kind, const Json& point) {
  std::string flags;
  if (point.contains("flags"))
    for (const auto& [name, value] : point["flags"].items())
      if (value.is_string()) flags += fmt::format(" --{} {}", name, value.get<std::string>());
  return fmt::format("{}, {:.0f} ranks, batch {:.0f}: {} images/s, limited by {};{}", kind,
                     number_at(point, {"ranks"}).value_or(0), number_at(point, {"batch"}).value_or(0),
                     short_number(number_at(point, {"images_per_second"}).value_or(0)), text_at(point, {"limit"}),
                     flags);
}

RankCurve scaling_curve(const Json& document, const char* kind, const char* what, double unit) {
  RankCurve out{.name = kind};
  for (const Json& point : list_at(document, {"scaling", kind})) {
    const auto ranks = number_at(point, {"ranks"}), value = number_at(point, {what});
    if (!ranks || !value || *ranks < 1 || *value <= 0) continue;
    out.ranks.push_back(*ranks);
    out.values.push_back(*value * unit);
    out.titles.push_back(point_title(kind, point));
  }
  return out;
}

std::string scaling_rows(const Json& document, const char* kind) {
  std::string out;
  const auto cell = [](const std::string& text) { return fmt::format("<td>{}</td>", escaped(text)); };
  for (const Json& point : list_at(document, {"scaling", kind})) {
    std::string flags;
    if (point.contains("flags"))
      for (const auto& [name, value] : point["flags"].items())
        if (value.is_string()) flags += fmt::format("--{} {} ", name, value.get<std::string>());
    const auto number = [&](const char* name) { return number_at(point, {name}).value_or(0); };
    out += "<tr>" + cell(kind) + cell(number_of_ranks(number("ranks"))) + cell(number_of_ranks(number("batch")));
    if (point.contains("problem"))
      out += fmt::format("<td colspan='4'>{}</td>", escaped(text_at(point, {"problem"})));
    else
      out += cell(short_number(number("images_per_second"))) +
             cell(fmt::format("{:.0f}%", 100 * number("efficiency"))) + cell(short_bytes(number("memory_bytes"))) +
             cell(text_at(point, {"limit"}));
    out += cell(flags) + "</tr>";
  }
  return out;
}

std::string scaling_article(const RunDocuments& run) {
  const Json& document = run.run;
  std::vector<RankCurve> speed;
  for (const char* kind : {"strong", "weak"}) speed.push_back(scaling_curve(document, kind, "images_per_second", 1));
  if (const RankCurve& weak = speed[1]; !weak.values.empty()) {
    RankCurve ideal{.name = "ideal", .ranks = weak.ranks, .ideal = true};
    for (const double ranks : weak.ranks) ideal.values.push_back(weak.values[0] * ranks / weak.ranks[0]);
    speed.push_back(ideal);
  }
  const auto both = [&](const char* what, double unit) {
    return std::vector{scaling_curve(document, "strong", what, unit), scaling_curve(document, "weak", what, unit)};
  };
  const std::string cards =
      card("Images per second by ranks", scaling_chart("images per second by ranks", speed, true)) +
      card("Efficiency, % of the first point per rank",
           scaling_chart("efficiency by ranks", both("efficiency", 100), false)) +
      card("Memory per rank, GiB", scaling_chart("memory by ranks", both("memory_bytes", 1.0 / (1 << 30)), false));
  const Json& image = list_at(document, {"scaling", "image"});
  const std::string size = image.size() == 3 && image[1].is_number() && image[2].is_number()
                               ? fmt::format(", images of {}x{}", image[1].get<double>(), image[2].get<double>())
                               : "";
  return fmt::format(
      "<article><h2>Scaling: {}{}, costs {}</h2>{}<div class='cards'>{}</div><div class='wide'><table><thead><tr>"
      "<th>scaling</th><th>ranks</th><th>batch</th><th>images/s</th><th>efficiency</th><th>memory</th>"
      "<th>limited by</th><th>plan</th></tr></thead><tbody>{}{}</tbody></table></div></article>\n",
      escaped(text_at(document, {"scaling", "model"})), size, escaped(text_at(document, {"scaling", "costs"})),
      legend({"strong", "weak"}), cards, scaling_rows(document, "strong"), scaling_rows(document, "weak"));
}

}  // namespace

std::string scaling(const Runs& runs) {
  std::string out;
  for (const RunDocuments& run : runs)
    if (run.run.is_object() && run.run.contains("scaling")) out += scaling_article(run);
  return out;
}

}  // namespace tessera::report
