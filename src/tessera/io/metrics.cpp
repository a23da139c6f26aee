#include "tessera/io/metrics.h"

#include <chrono>
#include <string_view>

#include "tessera/io/strict_json.h"

namespace tessera {
namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson json_of(const Metric& metric) {
  if (const auto* number = std::get_if<double>(&metric.value)) return *number;  // what is not finite is written as null
  if (const auto* whole = std::get_if<std::int64_t>(&metric.value)) return *whole;
  return std::get<std::string>(metric.value);
}

// Lines that are not ours are kept.
bool is_of_a_step_from(std::int64_t first_step, std::string_view line) {
  const auto json = nlohmann::json::parse(line, nullptr, false);
  if (!json.is_object()) return false;
  const auto step = json.find("step");
  return step != json.end() && step->is_number_integer() && step->get<std::int64_t>() >= first_step;
}

// Opens nothing: AppendFile must see the file as it is afterwards.
std::string tidied(std::string path, std::optional<std::int64_t> first_step) {
  if (!is_file(path)) return path;
  const std::string all = read_text(path);
  std::string kept;
  for (std::size_t begin = 0, end; (end = all.find('\n', begin)) != std::string::npos; begin = end + 1) {
    const std::string_view line(all.data() + begin, end + 1 - begin);
    if (!first_step || !is_of_a_step_from(*first_step, line)) kept += line;
  }
  if (kept != all) write_text_atomically(path, kept);
  return path;
}

}  // namespace

double wall_clock() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

MetricsFile::MetricsFile(std::string path, std::optional<std::int64_t> first_step)
    : file_(tidied(std::move(path), first_step)) {}

void MetricsFile::write(std::int64_t step, const std::vector<Metric>& metrics, double time) {
  OrderedJson line{{"step", step}, {"time", time}};
  for (const auto& metric : metrics) line[metric.name] = json_of(metric);
  file_.append(line.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) + "\n");
}

}  // namespace tessera
