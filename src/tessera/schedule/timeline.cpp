#include "tessera/schedule/timeline.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <set>

#include "tessera/base/error.h"
#include "tessera/base/text.h"

namespace tessera {
namespace {

struct Scale {
  double columns_per_time = 1;
  std::size_t digits = 0;  ///< of a micro
};

int digits_of(std::int64_t number) { return static_cast<int>(std::to_string(number).size()); }

// The picture is as wide as the label of the shortest action needs, if that fits. Numbers are cut when a third of the
// actions have no room for theirs: one small stage should not take them from all the others.
Scale fit(const Plan& plan, const Simulation& simulation, int columns) {
  std::vector<double> times;
  for (const auto& rank : simulation.ranks)
    for (const auto& span : rank.spans)
      if (span.end > span.begin) times.push_back(span.end - span.begin);
  std::sort(times.begin(), times.end());
  const double widest = columns / simulation.makespan;
  const double room = widest * times[times.size() / 3];
  int digits = digits_of(std::max(plan.micros(Direction::down), plan.micros(Direction::up)) - 1);
  if (1 + digits > room) digits = 1;
  if (1 + digits > room) digits = 0;
  return {std::min((1 + digits) / times.front(), widest), static_cast<std::size_t>(digits)};
}

std::string label_of(const Action& action, std::size_t digits) {
  std::string text = concat(Action{action.kind, 0, action.micro});
  const std::string number = text.substr(1);
  const char letter = action.direction == Direction::up
                          ? static_cast<char>(std::tolower(static_cast<unsigned char>(text[0])))
                          : text[0];
  return letter + number.substr(number.size() - std::min(number.size(), digits));
}

std::string line_of(const Simulation::Rank& rank, const Scale& scale, double makespan) {
  const auto column = [&](double time) {
    return static_cast<std::size_t>(std::llround(time * scale.columns_per_time));
  };
  std::string line(column(makespan), '.');
  for (const auto& span : rank.spans) {
    if (span.action.kind == Action::Kind::step) continue;
    const std::size_t begin = column(span.begin), end = column(span.end);
    std::string label = label_of(span.action, scale.digits);
    if (label.size() > end - begin) label.resize(1);  // half a number would be another number
    label.resize(end - begin, '-');
    line.replace(begin, end - begin, label);
  }
  return line;
}

std::string percent(double share) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f %%", 100 * share);
  return text;
}

std::string legend(const Plan& plan, const Simulation& simulation, const Scale& scale) {
  std::set<Action::Kind> kinds;
  for (const auto& rank : simulation.ranks)
    for (const auto& span : rank.spans) kinds.insert(span.action.kind);
  std::vector<std::string> words{"F forward"};
  if (kinds.contains(Action::Kind::backward)) words.push_back("B backward");
  if (kinds.contains(Action::Kind::input_gradient)) words.push_back("I input gradient");
  if (kinds.contains(Action::Kind::weight_gradient)) words.push_back("W weight gradient");
  if (plan.bidirectional()) words.push_back("small letters: direction up");
  if (scale.digits == 1 && plan.micros(Direction::down) > 10) words.push_back("micros by their last digit");
  words.push_back(". waiting");
  return join(words, ", ") + "\n";
}

}  // namespace

std::string timeline(const Plan& plan, const Simulation& simulation, int columns) {
  ensure(simulation.makespan > 0, "a timeline of a step that takes no time");
  const Scale scale = fit(plan, simulation, columns);
  const auto width = std::to_string(simulation.ranks.size() - 1).size();
  std::string out;
  for (std::size_t r = 0; r < simulation.ranks.size(); ++r) {
    const std::string number = std::to_string(r);
    out += concat("rank ", std::string(width - number.size(), ' '), number, "  ",
                  line_of(simulation.ranks[r], scale, simulation.makespan), "\n");
  }
  out += legend(plan, simulation, scale) + "\n";

  Table table({"rank", "stage", "waits", "live micros"});
  for (int r = 0; r < static_cast<int>(simulation.ranks.size()); ++r) {
    const auto& rank = simulation.ranks[static_cast<std::size_t>(r)];
    std::vector<std::string> stages;
    for (const auto& place : plan.first_places_of(r))
      stages.push_back(concat(place.stage, place.direction == Direction::up ? "'" : ""));
    table.row({std::to_string(r), join(stages, " "), percent(simulation.idle(rank)), std::to_string(rank.live_micros)});
  }
  return out + table.str() +
         concat("predicted bubble: ", percent(simulation.idle()), " of the step; live micros on a rank: at most ",
                simulation.live_micros(), "\n");
}

}  // namespace tessera
