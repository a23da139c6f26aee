#include "tessera/ops/way_choices.h"

#include <sys/stat.h>
#include <time.h>
#include <torch/version.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <limits>
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
  if (base.empty()) return {};
  mkdir(base.c_str(), 0755);  // may be there already
  mkdir((base + "/tessera").c_str(), 0755);
  return base + "/tessera/ways";
}

double seconds_of(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace

WayChoices::WayChoices(std::string how, std::string path)
    : how_(how.empty() ? "fixed" : std::move(how)), path_(std::move(path)) {
  constexpr std::array<std::string_view, 9> known{"fixed",       "measured", "winograd", "direct", "depthwise",
                                                  "convolution", "rows",     "product",  "blocked"};
  if (std::find(known.begin(), known.end(), how_) == known.end())
    throw UsageError(concat("TESSERA_WAYS=", how_, " is no way to choose; use fixed or measured"));
  if (measured()) read();
}

WayChoices& WayChoices::of_process() {
  static WayChoices choices = [] {
    const char* const how = std::getenv("TESSERA_WAYS");
    return WayChoices(how ? how : "", file_of_user());
  }();
  return choices;
}

std::string WayChoices::find(const std::string& shape) const {
  const std::lock_guard lock(mutex_);
  const auto found = ways_.find(machine() + shape);
  return found == ways_.end() ? std::string() : found->second;
}

void WayChoices::remember(const std::string& shape, const std::string& way) {
  const std::lock_guard lock(mutex_);
  ways_[machine() + shape] = way;
  // What other processes have found out since is kept; of two answers to one question the first stays.
  read();
  write();
}

void WayChoices::read() {
  std::ifstream in(path_);
  for (std::string line; std::getline(in, line);)
    if (const std::size_t tab = line.rfind('\t'); tab != std::string::npos && tab + 1 < line.size())
      ways_.emplace(line.substr(0, tab), line.substr(tab + 1));
}

// Whole or not at all: under another name first, and then renamed.
void WayChoices::write() const {
  if (path_.empty()) return;
  const std::string part = concat(path_, ".", getpid());
  {
    std::ofstream out(part);
    for (const auto& [shape, way] : ways_) out << shape << '\t' << way << '\n';
    if (!out.flush()) {
      std::remove(part.c_str());
      return;
    }
  }
  if (std::rename(part.c_str(), path_.c_str()) != 0) std::remove(part.c_str());
}

std::size_t fastest(const std::vector<std::function<void()>>& ways, int threads) {
  const clockid_t clock = threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC;
  std::vector<double> best(ways.size(), std::numeric_limits<double>::infinity());
  // Long ones are told apart at once; the first time of each is for warming up.
  constexpr int most_rounds = 4;
  constexpr double enough = 0.25;
  double spent = 0;
  for (int round = 0; round < most_rounds && (round < 2 || spent < enough); ++round)
    for (std::size_t i = 0; i < ways.size(); ++i) {
      const double start = seconds_of(clock);
      ways[i]();
      const double took = seconds_of(clock) - start;
      spent += took;
      best[i] = round == 0 ? best[i] : std::min(best[i], took);
    }
  constexpr double clearly = 0.93;
  std::size_t chosen = 0;
  for (std::size_t i = 1; i < ways.size(); ++i)
    if (best[i] < best[chosen] * (chosen == 0 ? clearly : 1)) chosen = i;
  return chosen;
}

}  // namespace tessera
