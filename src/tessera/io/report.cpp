#include "tessera/io/report.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "tessera/base/error.h"
#include "tessera/io/build_info.h"
#include "tessera/io/file.h"
#include "tessera/io/json_file.h"
#include "tessera/io/strict_json.h"
#include "tessera/plan/layout.h"
#include "tessera/schedule/simulator.h"

namespace tessera {
namespace {

using OrderedJson = nlohmann::ordered_json;

std::string first_line_with(const char* file, const std::string& key) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);)
    if (line.starts_with(key)) {
      const auto colon = line.find(':');
      const auto begin = colon == std::string::npos ? colon : line.find_first_not_of(" \t", colon + 1);
      return begin == std::string::npos ? "" : line.substr(begin);
    }
  return "";
}

// "/dev/fd/7" is a descriptor that is open already: what is written to it follows what was written before.
std::optional<int> open_descriptor(const std::string& path) {
  constexpr std::string_view folder = "/dev/fd/";
  if (!path.starts_with(folder)) return std::nullopt;
  int descriptor = 0;
  const char* end = path.data() + path.size();
  const auto [stop, error] = std::from_chars(path.data() + folder.size(), end, descriptor);
  return error == std::errc() && stop == end ? std::optional(descriptor) : std::nullopt;
}

OrderedJson machine_json() {
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  return {{"host", host},
          {"cpu", first_line_with("/proc/cpuinfo", "model name")},
          {"cores", std::thread::hardware_concurrency()},
          {"memory", first_line_with("/proc/meminfo", "MemTotal")}};
}

OrderedJson build_json() {
  const BuildInfo b = build_info();
  return {{"version", b.version}, {"commit", b.commit}, {"compiler", b.compiler}};
}

OrderedJson plan_json(const Plan& plan, const Graph& graph) {
  OrderedJson stages = OrderedJson::array();
  for (const auto& stage : plan.stages)
    stages.push_back({{"first_node", graph.nodes()[static_cast<std::size_t>(stage.first_node)].name},
                      {"last_node", graph.nodes()[static_cast<std::size_t>(stage.end_node - 1)].name},
                      {"grid", {stage.grid.rows, stage.grid.columns}},
                      {"turns", {stage.turns.rows, stage.turns.columns}},
                      {"batch_ways", stage.batch_ways},
                      {"ranks", stage.ranks}});
  const Shape& image = graph.nodes()[0].shape;
  return {{"image", {image.channels, image.height, image.width}},
          {"batch_size", plan.batch_size},
          {"global_batch", plan.global_batch()},
          {"parts", plan.parts},
          {"micros", plan.micros()},
          {"replicas", plan.replicas},
          {"directions", plan.directions()},
          {"times", plan.times},
          {"schedule", to_string(plan.schedule)},
          {"fused_layers", plan.fused_layers},
          {"batch_norm", to_string(plan.batch_norm)},
          {"grad_sync", to_string(plan.grad_sync)},
          {"ranks", plan.ranks()},
          {"stages", stages}};
}

OrderedJson parts_json(const std::vector<PartSeconds>& ranks) {
  OrderedJson out = OrderedJson::array();
  for (const auto& parts : ranks) {
    OrderedJson rank;
    for (std::size_t p = 0; p < parts.size(); ++p) rank[std::string(part_names[p])] = parts[p];
    out.push_back(rank);
  }
  return out;
}

// JSON has no infinity; null stands for it.
OrderedJson number(double value) { return std::isfinite(value) ? OrderedJson(value) : OrderedJson(nullptr); }

OrderedJson number(const std::optional<double>& value) { return value ? number(*value) : OrderedJson(nullptr); }

OrderedJson evaluation_json(const Evaluation& r) {
  const bool several = r.labels == LabelKind::several;
  const int classes = several ? 0 : r.confusion.classes();
  OrderedJson recall = OrderedJson::array(), confusion = OrderedJson::array();
  for (int k = 0; k < classes; ++k) {
    recall.push_back(number(r.confusion.recall(k)));
    OrderedJson row = OrderedJson::array();
    for (int p = 0; p < classes; ++p) row.push_back(r.confusion.count(k, p));
    confusion.push_back(row);
  }
  OrderedJson by_class = OrderedJson::array();
  for (std::size_t c = 0; c < r.by_class.size(); ++c) {
    const Confusion& answers = r.by_class[c];
    recall.push_back(number(answers.recall(1)));
    by_class.push_back({{"true_positives", answers.count(1, 1)},
                        {"false_positives", answers.count(0, 1)},
                        {"false_negatives", answers.count(1, 0)},
                        {"true_negatives", answers.count(0, 0)},
                        {"auc", number(r.class_auc[c])}});
  }
  OrderedJson out{{"images", r.images},
                  {"labelled", r.labelled},
                  {"loss", number(r.loss)},
                  {"accuracy", number(r.confusion.accuracy())},
                  {"auc", number(r.auc)},
                  {"mean_iou", r.labels == LabelKind::pixel ? number(r.confusion.mean_iou()) : OrderedJson(nullptr)},
                  {"labels", r.labels == LabelKind::pixel ? "pixels"
                             : several                    ? "several"
                                                          : "images"},
                  {"recall", recall},
                  {"confusion", confusion},
                  {"seconds", r.seconds},
                  {"data_seconds", r.parts[static_cast<std::size_t>(Part::data)]}};
  if (several) out["by_class"] = by_class;
  return out;
}

OrderedJson evaluation_at_json(const RunReport::EvaluationAt& e) {
  OrderedJson out{{"step", e.step}};
  out.update(evaluation_json(e.result));
  return out;
}

// What the network is made of, and which stage runs it.
OrderedJson cells_json(const Plan& plan, const Graph& graph) {
  OrderedJson out = OrderedJson::array();
  for (std::size_t c = 0; c < graph.cells().size(); ++c) {
    Cost cost;
    Shape last;
    std::int64_t parameters = 0;
    int stage = 0;
    for (std::size_t n = 0; n < graph.nodes().size(); ++n) {
      const Node& node = graph.nodes()[n];
      if (node.cell != static_cast<int>(c)) continue;
      last = node.shape;
      cost += graph.cost(node, plan.micro_size());
      for (const auto& spec : node.parameters) parameters += spec.trainable ? spec.elements() : 0;
      for (std::size_t s = 0; s < plan.stages.size(); ++s)
        if (static_cast<int>(n) >= plan.stages[s].first_node && static_cast<int>(n) < plan.stages[s].end_node)
          stage = static_cast<int>(s);
    }
    out.push_back({{"name", graph.cells()[c].name},
                   {"stage", stage},
                   {"output", {last.channels, last.height, last.width}},
                   {"gflop", cost.flops() / 1e9},
                   {"parameters", parameters}});
  }
  return out;
}

OrderedJson expected_json(const std::vector<RunReport::Expected>& ranks) {
  OrderedJson out = OrderedJson::array();
  for (const auto& e : ranks) {
    OrderedJson& rank = out.emplace_back(OrderedJson{{"seconds", e.seconds}, {"computing", e.computing}});
    rank["parts"] = parts_json({e.parts})[0];
  }
  return out;
}

OrderedJson run_json(const RunReport& r, const Plan& plan, const Graph& graph) {
  const Spread speed = images_per_second(r.steps, plan.global_batch());
  return {{"tessera", build_json()},
          {"machine", machine_json()},
          {"command", r.command},
          {"state", r.state},
          {"model", r.model},
          {"dtype", r.dtype},
          {"images", r.images},
          {"class_names", r.class_names},
          {"threads", r.threads},
          {"trainable_parameters", graph.trainable_elements()},
          {"flags", r.flags},
          {"plan", plan_json(plan, graph)},
          {"cells", cells_json(plan, graph)},
          {"images_per_second", r.steps.empty()
                                    ? OrderedJson(nullptr)
                                    : OrderedJson({{"median", speed.median}, {"p10", speed.low}, {"p90", speed.high}})},
          {"peak_bytes", r.peak_bytes},
          {"predicted_bytes", r.predicted_bytes},
          {"rank_seconds", r.rank_seconds},
          {"rank_parts", parts_json(r.rank_parts)},
          {"expected", expected_json(r.expected)},
          {"expected_images_per_second", r.expected_speed ? OrderedJson(*r.expected_speed) : OrderedJson(nullptr)},
          {"peak_resident_bytes", peak_resident_bytes()}};
}

}  // namespace

void write_json(const std::string& path, const OrderedJson& document) {
  const std::string text = to_text(document);
  const auto descriptor = open_descriptor(path);
  if (!descriptor) return write_text_atomically(path, text);
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t bytes = write(*descriptor, text.data() + done, text.size() - done);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes < 0) throw Error(concat("cannot write to ", path, ": ", std::strerror(errno)));
    done += static_cast<std::size_t>(bytes);
  }
}

std::string plan_text(const Plan& plan, const Graph& graph) { return plan_json(plan, graph).dump(); }

BuildInfo build_info() { return {TESSERA_VERSION, TESSERA_COMMIT, TESSERA_COMPILER, TESSERA_SANITIZERS}; }

Spread spread_of(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const auto at = [&](double share) {
    return values[static_cast<std::size_t>(std::lround(share * static_cast<double>(values.size() - 1)))];
  };
  return {at(0.1), at(0.5), at(0.9)};
}

Spread images_per_second(const std::vector<StepReport>& steps, std::int64_t batch_size) {
  std::vector<double> speeds;
  for (std::size_t i = steps.size() > 1 ? 1 : 0; i < steps.size(); ++i)
    speeds.push_back(static_cast<double>(batch_size) / steps[i].seconds);
  return spread_of(std::move(speeds));
}

void check_writable(const std::string& flag, const std::string& path) {
  if (path.empty()) return;
  if (const auto descriptor = open_descriptor(path)) {
    const int mode = fcntl(*descriptor, F_GETFL);
    require(mode != -1 && (mode & O_ACCMODE) != O_RDONLY, flag, " ", path, ": it is not open for writing");
    return;
  }
  // What is written takes the place of what was there: of a device, for good.
  require(access(path.c_str(), F_OK) != 0 || is_folder(path) || is_file(path), flag, " ", path,
          ": that is not a file; choose another name");
  const std::string temporary = path + ".part";
  const bool good = std::ofstream(temporary).good();
  if (good) remove_file(temporary);
  require(good && !is_folder(path), flag, " ", path, ": cannot write there; the folder must exist and be writable");
}

void write_run(const std::string& path, const RunReport& r, const Plan& plan, const Graph& graph) {
  write_json(path, run_json(r, plan, graph));
}

void write_report(const std::string& path, const RunReport& r, const Plan& plan, const Graph& graph) {
  OrderedJson document = run_json(r, plan, graph);
  OrderedJson& steps = document["steps"] = OrderedJson::array();
  for (const auto& s : r.steps)
    steps.push_back({{"step", s.step + 1},
                     {"epoch", s.epoch + 1},
                     {"loss", s.loss},
                     {"seconds", s.seconds},
                     {"data_seconds", s.part(Part::data)},
                     {"learning_rate", s.learning_rate}});
  OrderedJson& evaluations = document["evaluations"] = OrderedJson::array();
  for (const auto& e : r.evaluations) evaluations.push_back(evaluation_at_json(e));
  write_json(path, document);
}

void write_evaluation_at(const std::string& path, const RunReport::EvaluationAt& e,
                         const std::vector<std::string>& class_names) {
  OrderedJson document = evaluation_at_json(e);
  document["class_names"] = class_names;
  write_json(path, document);
}

void write_evaluation(const std::string& path, const Evaluation& result, const Plan& plan, const Graph& graph) {
  write_json(path, {{"tessera", build_json()},
                    {"machine", machine_json()},
                    {"plan", plan_json(plan, graph)},
                    {"evaluation", evaluation_json(result)}});
}

void write_plan(const std::string& path, const Plan& plan, const Graph& graph, const std::vector<Footprint>& memory,
                std::int64_t element_bytes, const PlanFlags& flags) {
  OrderedJson stages = OrderedJson::array(), ranks = OrderedJson::array();
  const Layout layout = make_layout(graph, plan);
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    Cost cost;
    for (int n = plan.stages[s].first_node; n < plan.stages[s].end_node; ++n)
      cost += graph.cost(graph.node({n}), plan.micro_size());
    const ExchangeCost exchange = exchange_cost(layout, graph, static_cast<int>(s));
    stages.push_back({{"forward_flops", cost.forward_flops},
                      {"input_gradient_flops", cost.input_gradient_flops},
                      {"weight_gradient_flops", cost.weight_gradient_flops},
                      {"exchanges", exchange.exchanges},
                      {"messages", exchange.messages},
                      {"exchanged_bytes", exchange.elements * element_bytes}});
  }
  for (const Footprint& m : memory)
    ranks.push_back({{"parameter_bytes", m.parameters},
                     {"image_bytes", m.images},
                     {"activation_bytes", m.activations},
                     {"bytes", m.peak()}});
  const Simulation simulation = simulate(plan, make_schedule(plan), stage_costs(plan, graph));
  write_json(path, {{"tessera", build_json()},
                    {"plan", plan_json(plan, graph)},
                    {"flags", flags},
                    {"of_a_micro", stages},
                    {"bubble", simulation.idle()},
                    {"micros_alive", simulation.live_micros()},
                    {"memory", ranks}});
}

void write_verification(const std::string& path, const VerifyReport& r, const Plan& plan, const Graph& graph) {
  OrderedJson differences = OrderedJson::array();
  for (const auto& d : r.differences)
    differences.push_back({{"what", d.what},
                           {"step", d.step + 1},
                           {"relative", number(d.relative)},
                           {"rounding", d.rounding > 0 ? number(d.rounding) : OrderedJson()},
                           {"allowed", number(d.allowed)}});
  write_json(path, {{"tessera", build_json()},
                    {"machine", machine_json()},
                    {"plan", plan_json(plan, graph)},
                    {"passed", r.passed},
                    {"tolerance", r.tolerance},
                    {"factor", r.factor},
                    {"largest", number(r.largest)},
                    {"tensors_compared", r.compared},
                    {"beyond_tolerance", r.beyond_tolerance},
                    {"hidden_by_rounding", r.hidden},
                    {"differences", differences}});
}

}  // namespace tessera
