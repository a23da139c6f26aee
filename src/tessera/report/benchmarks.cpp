#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "tessera/report/markup.h"
#include "tessera/report/sections.h"

namespace tessera::report {
namespace {

struct Figure {
  double value = 0, low = 0, high = 0;
};
/// By network: by image size: by way of parallelism.
using Figures = std::map<std::string, std::map<std::pair<double, double>, std::map<std::string, Figure>>>;

bool is_benchmark(const RunDocuments& run) {
  const Json& command = list_at(run.run, {"command"});
  return command.size() > 2 && command[1] == "bench" && command[2].is_string();
}

std::string way_of(const RunDocuments& run) {
  return fmt::format("{}: {}", run.run["command"][2].get<std::string>(), plan_words(run.run.value("plan", Json())));
}

std::string bars(const std::map<std::pair<double, double>, std::map<std::string, Figure>>& groups,
                 const std::vector<std::string>& ways, const std::string& label) {
  constexpr double height = 260, left = 52, right = 10, top = 18, bottom = 34, bar = 38;
  const double group = bar * static_cast<double>(ways.size()) + 26;
  const double width = std::max(440.0, left + right + group * static_cast<double>(groups.size()));
  std::vector<double> all;
  for (const auto& [size, figures] : groups)
    for (const auto& [way, figure] : figures) all.push_back(figure.high);
  const Scale up = scale_for(all, height - bottom, top, true);
  std::string inside;
  for (const double value : ticks(up.low, up.high, 4)) {
    inside += line(left, up(value), width - right, up(value), "class='grid'");
    inside += words(left - 6, up(value) + 4, short_number(value), "class='axis end'");
  }
  double x = left + 13;
  for (const auto& [size, figures] : groups) {
    for (std::size_t w = 0; w < ways.size(); ++w) {
      const auto found = figures.find(ways[w]);
      if (found == figures.end()) continue;
      const Figure& f = found->second;
      const double from = x + bar * static_cast<double>(w), middle = from + bar / 2 - 2;
      inside +=
          rectangle(from, up(f.value), bar - 4, up(0) - up(f.value),
                    fmt::format("class='part s{}' data-value='{:.6g}' data-way='{}'", w % 8, f.value, escaped(ways[w])),
                    fmt::format("{}, {:.0f}x{:.0f}: {} ({} to {})", ways[w], size.first, size.second,
                                short_number(f.value), short_number(f.low), short_number(f.high)));
      if (f.high > f.low) inside += line(middle, up(f.low), middle, up(f.high), "class='spread'");
      inside += words(middle, up(f.high) - 4, short_number(f.value), "class='axis middle'");
    }
    inside += words(x + bar * static_cast<double>(ways.size()) / 2, height - bottom + 16,
                    fmt::format("{:.0f}x{:.0f}", size.first, size.second), "class='axis middle'");
    x += group;
  }
  return "<div class='wide'>" + svg(width, height, label, inside, "class='bars'") + "</div>" + legend(ways);
}

}  // namespace

std::string benchmarks(const Runs& runs) {
  Figures speed, memory;
  std::map<std::string, std::set<std::string>> ways;
  for (const RunDocuments& run : runs) {
    if (!is_benchmark(run)) continue;
    const Json& image = list_at(run.run, {"plan", "image"});
    const auto median = number_at(run.run, {"images_per_second", "median"});
    if (image.size() != 3 || !median) continue;
    const std::pair size(image[1].get<double>(), image[2].get<double>());
    const std::string model = text_at(run.run, {"model"}), way = way_of(run);
    ways[model].insert(way);
    speed[model][size][way] = {*median, number_at(run.run, {"images_per_second", "p10"}).value_or(*median),
                               number_at(run.run, {"images_per_second", "p90"}).value_or(*median)};
    double most = 0;
    for (const Json& bytes : list_at(run.run, {"peak_bytes"}))
      if (bytes.is_number()) most = std::max(most, bytes.get<double>());
    memory[model][size][way] = {most / (1 << 20), most / (1 << 20), most / (1 << 20)};
  }
  std::string out;
  for (const auto& [model, groups] : speed) {
    const std::vector<std::string> names(ways[model].begin(), ways[model].end());
    out += card(fmt::format("{}: images per second by image size", model), bars(groups, names, "images per second"));
    out += card(fmt::format("{}: peak memory per rank, MiB", model), bars(memory[model], names, "peak MiB per rank"));
  }
  return out.empty() ? "" : "<h2>Benchmarks</h2><div class='cards'>" + out + "</div>\n";
}

}  // namespace tessera::report
