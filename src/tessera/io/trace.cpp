#include "tessera/io/trace.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tessera/io/json_file.h"
#include "tessera/schedule/simulator.h"

namespace tessera {
namespace {

using OrderedJson = nlohmann::ordered_json;

const char* kind_name(Action::Kind kind) {
  switch (kind) {
    case Action::Kind::forward:
      return "forward";
    case Action::Kind::backward:
      return "backward";
    case Action::Kind::input_gradient:
      return "input gradient";
    case Action::Kind::weight_gradient:
      return "weight gradient";
    case Action::Kind::step:
      return "step";
  }
  return "";
}

// Times in seconds; the format counts microseconds.
OrderedJson event(const Action& action, std::int64_t step, int process, int rank, double begin, double end) {
  std::ostringstream name;
  name << action;
  return {{"name", name.str()},
          {"cat", kind_name(action.kind)},
          {"ph", "X"},
          {"ts", 1e6 * begin},
          {"dur", 1e6 * (end - begin)},
          {"pid", process},
          {"tid", rank},
          {"args",
           {{"step", step + 1},
            {"stage", action.stage},
            {"micro", action.micro},
            {"direction", action.direction == Direction::up ? "up" : "down"}}}};
}

void name_process(OrderedJson& events, int process, const std::string& name, int ranks) {
  events.push_back({{"name", "process_name"}, {"ph", "M"}, {"pid", process}, {"tid", 0}, {"args", {{"name", name}}}});
  for (int r = 0; r < ranks; ++r)
    events.push_back({{"name", "thread_name"},
                      {"ph", "M"},
                      {"pid", process},
                      {"tid", r},
                      {"args", {{"name", "rank " + std::to_string(r)}}}});
}

}  // namespace

void write_timeline(const std::string& path, const RunReport& report, const Plan& plan, const Graph& graph) {
  std::int64_t step = -1;
  for (const auto& rank : report.events)
    if (!rank.empty()) step = std::max(step, rank.back().step);
  double begin = INFINITY, end = 0;
  for (const auto& rank : report.events)
    for (const auto& e : rank)
      if (e.step == step) {
        begin = std::min(begin, e.begin);
        end = std::max(end, e.end);
      }
  if (!(begin < end)) return;
  const auto action = [](const Action& a, double from, double to) {
    std::ostringstream name;
    name << a;
    return OrderedJson{{"name", name.str()}, {"kind", kind_name(a.kind)},
                       {"stage", a.stage},   {"micro", a.micro},
                       {"begin", from},      {"end", to}};
  };
  OrderedJson ranks = OrderedJson::array(), parts = OrderedJson::array(), simulated = OrderedJson::array();
  for (const auto& rank : report.events) {
    OrderedJson& row = ranks.emplace_back(OrderedJson::array());
    for (const auto& e : rank)
      if (e.step == step) row.push_back(action(e.action, e.begin - begin, e.end - begin));
  }
  // What is too short to be seen would be most of the document.
  const double shortest = (end - begin) / 1000;
  for (const auto& rank : report.spans) {
    OrderedJson& row = parts.emplace_back(OrderedJson::array());
    for (const PartSpan& span : rank)
      if (span.end - span.begin >= shortest && span.end > begin)
        row.push_back({{"part", part_names[static_cast<std::size_t>(span.part)]},
                       {"begin", std::max(0.0, span.begin - begin)},
                       {"end", span.end - begin}});
  }
  const Simulation simulation = simulate(plan, make_schedule(plan), stage_costs(plan, graph));
  for (const auto& rank : simulation.ranks) {
    OrderedJson& row = simulated.emplace_back(OrderedJson::array());
    for (const auto& span : rank.spans) row.push_back(action(span.action, span.begin, span.end));
  }
  write_json(path, {{"step", step + 1},
                    {"seconds", end - begin},
                    {"ranks", ranks},
                    {"parts", parts},
                    {"simulated", {{"seconds", simulation.makespan}, {"ranks", simulated}}}});
}

void write_trace(const std::string& path, const RunReport& report, const Plan& plan, const Graph& graph) {
  constexpr int happened = 1, predicted = 2;
  OrderedJson events = OrderedJson::array();
  name_process(events, happened, "what happened", static_cast<int>(report.events.size()));
  name_process(events, predicted, "predicted", plan.ranks_per_replica());
  double first = 0, last_begin = 0, last_end = 0;
  std::int64_t last_step = 0;
  for (const auto& rank : report.events)
    if (!rank.empty()) {
      first = first == 0 ? rank.front().begin : std::min(first, rank.front().begin);
      last_step = rank.back().step;
    }
  for (std::size_t r = 0; r < report.events.size(); ++r)
    for (const auto& e : report.events[r]) {
      events.push_back(event(e.action, e.step, happened, static_cast<int>(r), e.begin - first, e.end - first));
      if (e.step != last_step) continue;
      last_begin = last_begin == 0 ? e.begin - first : std::min(last_begin, e.begin - first);
      last_end = std::max(last_end, e.end - first);
    }
  for (std::size_t r = 0; r < report.spans.size(); ++r)
    for (const PartSpan& span : report.spans[r]) {
      const std::string name(part_names[static_cast<std::size_t>(span.part)]);
      events.push_back({{"name", name},
                        {"cat", "not computing"},
                        {"ph", "X"},
                        {"ts", 1e6 * (span.begin - first)},
                        {"dur", 1e6 * (span.end - span.begin)},
                        {"pid", happened},
                        {"tid", r},
                        {"args", OrderedJson::object()}});
    }
  // Beside the last step: the first one also pays for memory and the choice of kernels.
  for (std::size_t r = 0; r < report.expected.size(); ++r)
    for (const TraceEvent& e : report.expected[r].actions)
      events.push_back(
          event(e.action, last_step, predicted, static_cast<int>(r), last_begin + e.begin, last_begin + e.end));
  if (report.expected.empty()) {
    // Without times that are known, the whole is made as long as it was.
    const Simulation simulation = simulate(plan, make_schedule(plan), stage_costs(plan, graph));
    const double scale = simulation.makespan > 0 ? (last_end - last_begin) / simulation.makespan : 0;
    for (std::size_t r = 0; r < simulation.ranks.size(); ++r)
      for (const auto& span : simulation.ranks[r].spans)
        events.push_back(event(span.action, last_step, predicted, static_cast<int>(r), last_begin + scale * span.begin,
                               last_begin + scale * span.end));
  }
  write_json(path, {{"traceEvents", events}, {"displayTimeUnit", "ms"}});
}

}  // namespace tessera
