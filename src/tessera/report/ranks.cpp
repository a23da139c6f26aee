#include <fmt/format.h>

#include <algorithm>

#include "tessera/report/markup.h"
#include "tessera/report/sections.h"

namespace tessera::report {
namespace {

constexpr double width = 440, row = 22, left = 58, right = 64;
constexpr std::size_t most_ranks = 64;  // more rows than anybody reads; the documents have them all

// Stage numbers of a rank, with a quote for direction up, as `tessera plan` prints them.
std::string stages_of(const Json& plan, std::size_t rank) {
  const auto replicas = static_cast<std::size_t>(number_at(plan, {"replicas"}).value_or(1));
  const auto all = static_cast<std::size_t>(number_at(plan, {"ranks"}).value_or(1));
  const std::size_t each = std::max<std::size_t>(1, all / std::max<std::size_t>(1, replicas)), inside = rank % each;
  std::string text;
  const Json& stages = list_at(plan, {"stages"});
  for (std::size_t s = 0; s < stages.size(); ++s)
    for (const Json& member : list_at(stages[s], {"ranks"})) {
      if (!member.is_number_integer()) continue;
      const auto number = member.get<std::size_t>();
      if (number == inside) text += (text.empty() ? "" : " ") + std::to_string(s);
      if (number_at(plan, {"directions"}).value_or(1) > 1 && each - 1 - number == inside)
        text += (text.empty() ? "" : " ") + std::to_string(s) + "'";
    }
  return text;
}

std::string times(const RunDocuments& run) {
  const Json &seconds = list_at(run.run, {"rank_seconds"}), &parts = list_at(run.run, {"rank_parts"});
  if (seconds.empty() || seconds.size() != parts.size()) return "";
  std::vector<std::string> names = part_names();
  // A part that takes no time on any rank is no news.
  std::erase_if(names, [&](const std::string& name) {
    return std::none_of(parts.begin(), parts.end(),
                        [&](const Json& p) { return number_at(p, {name}).value_or(0) > 0; });
  });
  const std::size_t shown = std::min(seconds.size(), most_ranks);
  double longest = 0;
  for (const Json& s : seconds) longest = std::max(longest, s.is_number() ? s.get<double>() : 0);
  const Scale across{0, longest > 0 ? longest : 1, left, width - right};
  std::string inside;
  for (std::size_t r = 0; r < shown; ++r) {
    const double y = 4 + static_cast<double>(r) * row, whole = seconds[r].is_number() ? seconds[r].get<double>() : 0;
    double other = 0;
    for (const std::string& name : names) other += number_at(parts[r], {name}).value_or(0);
    inside += words(left - 6, y + 13, fmt::format("rank {}", r), "class='axis end'");
    double from = 0;
    const auto add = [&](const std::string& name, double value, std::size_t colour) {
      if (value <= 0) return;
      inside += rectangle(
          across(from), y, across(from + value) - across(from), row - 6,
          fmt::format("class='part s{}' data-part='{}' data-seconds='{:.6g}'", colour % 8, escaped(name), value),
          fmt::format("rank {} (stage {}): {} {}", r, stages_of(run.run.value("plan", Json()), r), name,
                      short_seconds(value)));
      from += value;
    };
    add("compute", std::max(0.0, whole - other), 0);
    for (std::size_t p = 0; p < names.size(); ++p)
      add(names[p], number_at(parts[r], {names[p]}).value_or(0), part_colour(names[p]));
    inside += words(across(whole) + 6, y + 13, short_seconds(whole), "class='axis'");
  }
  std::string key = "<div class='legend'><span class='s0'><i></i>compute</span>";
  for (const std::string& name : names)
    key += fmt::format("<span class='s{}'><i></i>{}</span>", part_colour(name), escaped(name));
  return card("Where a step's time goes",
              svg(width, 8 + static_cast<double>(shown) * row, "seconds of a step by rank", inside, "class='rows'") +
                  key + "</div>");
}

std::string memory(const RunDocuments& run) {
  const Json& measured = list_at(run.run, {"peak_bytes"});
  const Json& predicted = list_at(run.run, {"predicted_bytes"});
  if (measured.empty() && predicted.empty()) return "";
  const std::size_t ranks = std::min(std::max(measured.size(), predicted.size()), most_ranks);
  const auto of = [](const Json& list, std::size_t r) {
    if (list.empty()) return 0.0;
    const Json& value = list[r % list.size()];  // predictions are those of one replica
    return value.is_number() ? value.get<double>() : 0.0;
  };
  double most = 1;
  for (std::size_t r = 0; r < ranks; ++r) most = std::max({most, of(measured, r), of(predicted, r)});
  const Scale across{0, most, left, width - right - 20};
  std::string inside;
  for (std::size_t r = 0; r < ranks; ++r) {
    const double y = 4 + static_cast<double>(r) * row;
    inside += words(left - 6, y + 13, fmt::format("rank {}", r), "class='axis end'");
    inside += rectangle(left, y, across(of(measured, r)) - left, row - 10,
                        fmt::format("class='part s0' data-bytes='{:.0f}'", of(measured, r)),
                        fmt::format("rank {}: measured {}", r, short_bytes(of(measured, r))));
    if (!predicted.empty())
      inside += rectangle(left, y + row - 9, across(of(predicted, r)) - left, 4,
                          fmt::format("class='part s2' data-predicted='{:.0f}'", of(predicted, r)),
                          fmt::format("rank {}: predicted {}", r, short_bytes(of(predicted, r))));
    inside += words(across(std::max(of(measured, r), of(predicted, r))) + 6, y + 12,
                    short_bytes(measured.empty() ? of(predicted, r) : of(measured, r)), "class='axis'");
  }
  std::string names = measured.empty() ? "" : "<span class='s0'><i></i>measured peak</span>";
  if (!predicted.empty()) names += "<span class='s2'><i></i>predicted</span>";
  return card("Memory", svg(width, 8 + static_cast<double>(ranks) * row, "bytes by rank", inside, "class='rows'") +
                            "<div class='legend'>" + names + "</div>");
}

}  // namespace

std::string ranks(const RunDocuments& run) { return times(run) + memory(run); }

}  // namespace tessera::report
