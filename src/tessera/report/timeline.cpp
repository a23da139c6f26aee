#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "tessera/report/markup.h"
#include "tessera/report/sections.h"

namespace tessera::report {
namespace {

constexpr std::array<const char*, 5> kinds{"forward", "backward", "input gradient", "weight gradient", "step"};

std::size_t colour_of(const std::string& kind) {
  return static_cast<std::size_t>(std::find(kinds.begin(), kinds.end(), kind) - kinds.begin());
}

double number_or_zero(const Json& event, const char* name) { return number_at(event, {name}).value_or(0); }

std::string actions_of(const Json& events, const Scale& across, double y, double height) {
  std::string out;
  for (const Json& e : events) {
    const double begin = number_or_zero(e, "begin"), end = number_or_zero(e, "end");
    const double from = across(begin), to = across(end);
    const std::string name = text_at(e, {"name"}), kind = text_at(e, {"kind"});
    out += rectangle(
        from, y, to - from, height, fmt::format("class='action k{}'", colour_of(kind)),
        fmt::format("{} {} of stage {:.0f}: {}", kind, name, number_or_zero(e, "stage"), short_seconds(end - begin)));
    if (to - from > 18) out += words((from + to) / 2, y + height / 2 + 4, name, "class='inside'");
  }
  return out;
}

std::string parts_of(const Json& events, const Scale& across, double y) {
  std::string out;
  for (const Json& e : events) {
    const double begin = number_or_zero(e, "begin"), end = number_or_zero(e, "end");
    const std::string part = text_at(e, {"part"});
    if (across(end) - across(begin) < 0.3) continue;
    out +=
        rectangle(across(begin), y, across(end) - across(begin), 5, fmt::format("class='part s{}'", part_colour(part)),
                  fmt::format("{}: {}", part, short_seconds(end - begin)));
  }
  return out;
}

// Simulated and measured rows have one scale: the simulator knows ratios, so its step is stretched to the measured one.
std::string picture(const Json& ranks, const Json& part_ranks, double seconds, const std::string& name) {
  constexpr double width = 900, left = 58, right = 10, row = 26;
  constexpr std::size_t most_ranks = 32;
  const std::size_t shown = std::min(ranks.size(), most_ranks);
  const Scale across{0, seconds > 0 ? seconds : 1, left, width - right};
  std::string inside;
  for (std::size_t r = 0; r < shown; ++r) {
    const double y = 4 + static_cast<double>(r) * row;
    inside += rectangle(left, y, width - right - left, row - 6, "class='idle'");
    inside += words(left - 6, y + 14, fmt::format("rank {}", r), "class='axis end'");
    const bool with_parts = r < part_ranks.size() && !part_ranks[r].empty();
    inside += actions_of(ranks[r], across, y, with_parts ? row - 11 : row - 6);
    if (with_parts) inside += parts_of(part_ranks[r], across, y + row - 11);
  }
  const double height = 24 + static_cast<double>(shown) * row;
  for (const double value : ticks(0, across.high, 8))
    inside += words(across(value), height - 6, value > 0 ? short_seconds(value) : "0", "class='axis middle'");
  return fmt::format("<h4>{}</h4><div class='wide'>{}</div>", escaped(name),
                     svg(width, height, name, inside, fmt::format("class='timeline' data-rows='{}'", shown)));
}

Json stretched(const Json& ranks, double factor) {
  Json out = ranks;
  for (Json& rank : out)
    for (Json& e : rank)
      for (const char* name : {"begin", "end"}) e[name] = factor * number_or_zero(e, name);
  return out;
}

}  // namespace

const std::vector<std::string>& part_names() {
  static const std::vector<std::string> names{"data",    "margin exchange", "norm agreement", "transfers",
                                              "waiting", "gradient sync",   "optimizer"};
  return names;
}

std::size_t part_colour(const std::string& part) {
  return static_cast<std::size_t>(std::find(part_names().begin(), part_names().end(), part) - part_names().begin()) + 1;
}

std::string timeline(const RunDocuments& run) {
  const Json& happened = list_at(run.timeline, {"ranks"});
  const Json& simulated = list_at(run.timeline, {"simulated", "ranks"});
  if (happened.empty()) return "";
  const double seconds = number_at(run.timeline, {"seconds"}).value_or(0);
  const double makespan = number_at(run.timeline, {"simulated", "seconds"}).value_or(0);
  std::string inside;
  if (!simulated.empty() && makespan > 0)
    inside += picture(stretched(simulated, seconds / makespan), Json::array(), seconds,
                      "Simulated (stretched to the measured length)");
  inside += picture(
      happened, list_at(run.timeline, {"parts"}), seconds,
      fmt::format("Measured: step {:.0f}, {}", number_at(run.timeline, {"step"}).value_or(0), short_seconds(seconds)));
  std::string names = "<div class='legend'>";
  for (std::size_t k = 0; k < kinds.size(); ++k)
    names += fmt::format("<span class='k{}'><i></i>{}</span>", k, kinds[k]);
  names +=
      "</div><p class='note'>The thin strip under a row: what of that time was not computing.</p><div class='legend'>";
  for (std::size_t p = 0; p < part_names().size(); ++p)
    names += fmt::format("<span class='s{}'><i></i>{}</span>", part_colour(part_names()[p]), escaped(part_names()[p]));
  return card("The timeline of a step", inside + names + "</div>", "id='timeline'");
}

}  // namespace tessera::report
