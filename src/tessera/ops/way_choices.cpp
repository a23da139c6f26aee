#include "tessera/ops/way_choices.h"

#include <sys/stat.h>
#include <time.h>
#include <torch/version.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <random>
#include <sstream>
#include <string_view>

#include "tessera/base/error.h"
#include "tessera/base/instruction_set.h"

namespace tessera {
namespace {

// What a measurement is worth nothing without.
std::string machine() {
  static const std::string words = [] {
    std::string model = "unknown";
    std::ifstream cpus("/proc/cpuinfo");
    for (std::string line; std::getline(cpus, line);)
      if (line.starts_with("model name")) {
        model = line.substr(std::min(line.size(), line.find(':') + 2));
        break;
      }
    return concat(model, ", ", to_string(instruction_set()), ", libtorch ", TORCH_VERSION, ": ");
  }();
  return words;
}

std::string file_of_user() {
  const auto value = [](const char* name) {
    const char* const v = std::getenv(name);
    return std::string(v ? v : "");
  };
  std::string base = value("XDG_CACHE_HOME");
  if (base.empty() && !value("HOME").empty()) base = value("HOME") + "/.cache";
  return base.empty() ? std::string() : base + "/tessera/ways";
}

// The last two folders of a path, which may be there already: those of ~/.cache/tessera/ways.
void make_folders_of(const std::string& path) {
  const std::size_t last = path.rfind('/');
  if (last == std::string::npos || last == 0) return;
  if (const std::size_t above = path.rfind('/', last - 1); above != std::string::npos && above > 0)
    mkdir(path.substr(0, above).c_str(), 0755);
  mkdir(path.substr(0, last).c_str(), 0755);
}

double seconds_of(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

constexpr std::array<std::string_view, 7> names{"winograd", "direct",  "depthwise", "convolution",
                                                "rows",     "product", "blocked"};
bool is_way(std::string_view name) { return std::find(names.begin(), names.end(), name) != names.end(); }

std::optional<std::uint64_t> drawn_seed(std::string_view how) {
  constexpr std::string_view word = "drawn:";
  std::uint64_t seed = 0;
  if (!how.starts_with(word)) return std::nullopt;
  const auto [end, error] = std::from_chars(how.data() + word.size(), how.data() + how.size(), seed);
  return error == std::errc() && end == how.data() + how.size() ? std::optional(seed) : std::nullopt;
}

// Of lines "shape <tab> way <tab> bytes"; what is none is passed over.
std::map<std::string, ChosenWay> parsed(std::istream& in) {
  std::map<std::string, ChosenWay> ways;
  for (std::string line; std::getline(in, line);) {
    const std::size_t first = line.find('\t'), second = line.rfind('\t');
    if (first == std::string::npos || first == second) continue;
    const std::string name = line.substr(first + 1, second - first - 1);
    double bytes = 0;
    const auto [end, error] = std::from_chars(&line[second] + 1, line.data() + line.size(), bytes);
    const bool number = error == std::errc() && end == line.data() + line.size();
    if (is_way(name) && number && std::isfinite(bytes) && bytes >= 0)
      ways.emplace(line.substr(0, first), ChosenWay{name, bytes});
  }
  return ways;
}

void print(const std::map<std::string, ChosenWay>& ways, std::ostream& out) {
  for (const auto& [shape, way] : ways)
    out << shape << '\t' << way.name << '\t' << std::llround(way.scratch_bytes.value_or(0)) << '\n';
}

}  // namespace

WayChoices::WayChoices(const std::string& how, std::string path) : path_(std::move(path)) { choose_by(how); }

WayChoices& WayChoices::of_process() {
  static WayChoices choices = [] {
    const char* const how = std::getenv("TESSERA_WAYS");
    return WayChoices(how ? how : "", file_of_user());
  }();
  return choices;
}

void WayChoices::choose_by(const std::string& how) {
  how_ = how.empty() ? "fixed" : how;
  seed_ = drawn_seed(how_);
  if (!fixed() && !measured() && !is_way(how_))
    throw UsageError(concat("TESSERA_WAYS=", how_, " is no way to choose; use fixed or measured"));
  ways_.clear();
  if (!measured() || seed_) return;
  std::ifstream in(path_);
  ways_ = parsed(in);
}

std::optional<ChosenWay> WayChoices::find(const std::string& shape) const {
  if (!measured()) return fixed() ? std::nullopt : std::optional(ChosenWay{how_});
  const std::lock_guard lock(mutex_);
  const auto found = ways_.find(machine() + shape);
  return found == ways_.end() ? std::nullopt : std::optional(found->second);
}

void WayChoices::remember(const std::string& shape, const ChosenWay& way) {
  const std::lock_guard lock(mutex_);
  ways_[machine() + shape] = way;
}

std::size_t WayChoices::pick(const std::string& shape, const std::vector<std::function<void()>>& ways,
                             int threads) const {
  if (!seed_) return fastest(ways, threads);
  std::uint64_t drawn = *seed_ ^ 0xcbf29ce484222325;  // FNV-1a: the same on every machine
  for (const char c : shape) drawn = (drawn ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return std::mt19937_64(drawn)() % ways.size();
}

// Whole or not at all: under another name first, and then renamed.
void WayChoices::save() const {
  const std::lock_guard lock(mutex_);
  if (path_.empty() || seed_) return;
  auto all = ways_;
  {
    std::ifstream in(path_);
    all.merge(parsed(in));
  }
  make_folders_of(path_);
  const std::string part = concat(path_, ".", getpid());
  {
    std::ofstream out(part);
    print(all, out);
    if (!out.flush()) {
      std::remove(part.c_str());
      return;
    }
  }
  if (std::rename(part.c_str(), path_.c_str()) != 0) std::remove(part.c_str());
}

std::string WayChoices::lines() const {
  const std::lock_guard lock(mutex_);
  std::ostringstream out;
  print(ways_, out);
  return out.str();
}

void WayChoices::learn(const std::string& lines) {
  std::istringstream in(lines);
  ways_ = parsed(in);
}

std::size_t fastest(const std::vector<std::function<void()>>& ways, int threads) {
  const clockid_t clock = threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC;
  std::vector<double> best(ways.size());
  double spent = 0;
  const auto run = [&](std::size_t i) {
    const double start = seconds_of(clock);
    ways[i]();
    const double took = seconds_of(clock) - start;
    spent += took;
    return took;
  };
  // The first time of each is for warming up: libraries compile, memory is mapped. What is quick can be told apart only
  // after that; of what is not, those that are far behind need no second try. The best of many is what a busy machine
  // disturbs least.
  constexpr double quick = 2e-3, far = 2, enough = 0.06, clearly = 0.93;
  constexpr int least_rounds = 3, most_rounds = 10;
  for (std::size_t i = 0; i < ways.size(); ++i) {
    best[i] = run(i);
    if (best[i] < quick) best[i] = run(i);
  }
  std::vector<std::size_t> near;
  const double leader = *std::min_element(best.begin(), best.end());
  for (std::size_t i = 0; i < ways.size(); ++i)
    if (best[i] < far * leader) near.push_back(i);
  for (int round = 0; near.size() > 1 && round < most_rounds && (round < least_rounds || spent < enough); ++round)
    for (const std::size_t i : near) best[i] = std::min(best[i], run(i));
  std::size_t chosen = 0;
  for (std::size_t i = 1; i < ways.size(); ++i)
    if (best[i] < best[chosen] * (chosen == 0 ? clearly : 1)) chosen = i;
  return chosen;
}

}  // namespace tessera
