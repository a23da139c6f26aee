// Draws plans, verifies each, and makes those that fail as small as they can be:
//
//     random_plans fuzz N SEED                            ranks as threads
//     random_plans fuzz N SEED --mpirun mpirun            as processes
//
// Any other first word is a command of tessera, with the network "random" among the others: so the command lines that
// are printed can be run again.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "../../apps/tessera/network.h"
#include "child.h"
#include "draw.h"
#include "random_graph.h"
#include "shrink.h"
#include "survey.h"
#include "tessera/app/program.h"
#include "tessera/base/error.h"

namespace tessera::plans {
namespace {

struct FuzzOptions {
  std::int64_t plans = 0;
  std::uint64_t seed = 0;
  std::string program;
  std::string mpirun;       ///< empty: ranks are threads
  std::string device;       ///< empty: as tessera takes it by itself
  int jobs = 1;             ///< plans that are tried at once
  double last = 1e9;        ///< seconds after which no new plan is tried
  double seconds = 300;     ///< that a plan may take
  int shrink_budget = 100;  ///< plans that are tried to make one smaller
  DrawOptions draw;
  double most_refused = 0.25;
};

std::vector<std::string> with_flags(std::vector<std::string> command, const Flags& flags) {
  const auto more = arguments(flags);
  command.insert(command.end(), more.begin(), more.end());
  return command;
}

Outcome outcome_of(const ChildResult& result) {
  if (result.timed_out) return Outcome::hung;
  if (result.code == static_cast<int>(ExitCode::ok)) return Outcome::equal;
  if (result.code == static_cast<int>(ExitCode::usage)) return Outcome::refused;
  if (result.output.find("rounding hides whether") != std::string::npos) return Outcome::hidden;
  return result.output.find("NOT EQUAL") != std::string::npos ? Outcome::not_equal : Outcome::died;
}

struct Trial {
  Outcome outcome;
  std::string output;
};

Trial tried(const Flags& flags, const FuzzOptions& options) {
  std::vector<std::string> command{options.program, "verify"};
  if (!options.mpirun.empty()) {
    // How many ranks it takes is for the planner to say.
    const ChildResult plan = run_child(with_flags({options.program, "plan"}, flags), options.seconds);
    const auto ranks = plan.output.find(", ranks ");
    if (plan.code != 0 || ranks == std::string::npos) return {outcome_of(plan), plan.output};
    command = {options.mpirun, "-np", std::to_string(std::atoi(plan.output.c_str() + ranks + 8)), options.program,
               "verify"};
  }
  const ChildResult result = run_child(with_flags(command, flags), options.seconds);
  return {outcome_of(result), result.output};
}

std::string reproduction(const Flags& flags) {
  const bool own = flags.count("--model") && flags.at("--model") == "random";
  return concat(own ? "random_plans" : "tessera", " verify ", command_line(flags));
}

void report_failure(const Flags& flags, const Trial& trial, const FuzzOptions& options) {
  std::printf("%s: %s\n%s\n", name_of(trial.outcome), reproduction(flags).c_str(), trial.output.c_str());
  std::fflush(stdout);
  const Flags small = shrunk(
      flags, [&](const Flags& smaller) { return tried(smaller, options).outcome == trial.outcome; },
      options.shrink_budget);
  std::printf("the smallest plan that is %s, too:\n  %s\n", name_of(trial.outcome), reproduction(small).c_str());
  std::fflush(stdout);
}

// Of small networks, exported without weights.
std::vector<std::string> network_files() {
  std::vector<std::string> files;
  for (const char* name : {"mnasnet0_5", "mobilenet_v3_small", "resnet18", "shufflenet_v2_x0_5", "squeezenet1_1"})
    if (std::string file = concat(NETWORK_FILES "/", name, ".pt2"); std::filesystem::exists(file))
      files.push_back(std::move(file));
  return files;
}

int fuzz(FuzzOptions options) {
  const ModelRegistry models = with_files(models_with_random(), std::make_shared<NetworkFiles>());
  options.draw.files = network_files();
  std::mutex files;  // belong to one thread at a time
  Survey survey;
  std::atomic<std::int64_t> next{0};
  std::int64_t done = 0;
  std::mutex mutex;  // of the survey and of what is printed
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(options.last);
  const auto work = [&] {
    for (std::int64_t i = next++; i < options.plans && std::chrono::steady_clock::now() < end; i = next++) {
      Flags flags = [&] {
        const std::lock_guard lock(files);
        return draw_plan(options.seed, i, options.draw, models);
      }();
      if (!options.device.empty()) flags["--device"] = options.device;
      const Trial trial = tried(flags, options);
      const std::lock_guard lock(mutex);
      survey.add(flags, trial.outcome);
      if (std::getenv("TESSERA_FUZZ_VERBOSE"))
        std::printf("%lld %s: %s\n%s", static_cast<long long>(i), name_of(trial.outcome), reproduction(flags).c_str(),
                    trial.outcome == Outcome::refused ? trial.output.c_str() : "");
      if (is_fault(trial.outcome)) report_failure(flags, trial, options);
      if (++done % 50 == 0) std::printf("%lld plans: %s\n", static_cast<long long>(done), survey.totals().c_str());
      std::fflush(stdout);
    }
  };
  std::vector<std::thread> workers;
  for (int job = 0; job < options.jobs; ++job) workers.emplace_back(work);
  for (std::thread& worker : workers) worker.join();
  std::printf("%s\n%s of seed %llu, ranks as %s\n", survey.table().c_str(), survey.totals().c_str(),
              static_cast<unsigned long long>(options.seed), options.mpirun.empty() ? "threads" : "processes");
  if (survey.refused_share() > options.most_refused) {
    std::printf(
        "FAILED: %.0f %% were refused, more than %.0f %%: a generator that draws what cannot run tests nothing\n",
        100 * survey.refused_share(), 100 * options.most_refused);
    return 1;
  }
  return survey.faults() > 0 ? 1 : 0;
}

std::optional<FuzzOptions> parsed(const std::vector<std::string>& words) {
  if (words.size() < 4 || words[1] != "fuzz") return std::nullopt;
  FuzzOptions o;
  o.plans = std::atoll(words[2].c_str());
  o.seed = std::strtoull(words[3].c_str(), nullptr, 10);
  o.program = words[0];
  for (std::size_t i = 4; i + 1 < words.size(); i += 2) {
    const std::string &flag = words[i], &value = words[i + 1];
    if (flag == "--mpirun")
      o.mpirun = value;
    else if (flag == "--device")
      o.device = value;
    else if (flag == "--for")
      o.last = std::atof(value.c_str());
    else if (flag == "--jobs")
      o.jobs = std::max(1, std::atoi(value.c_str()));
    else if (flag == "--seconds")
      o.seconds = std::atof(value.c_str());
    else if (flag == "--max-ranks")
      o.draw.max_ranks = std::atoll(value.c_str());
    else
      return std::nullopt;
  }
  return o;
}

}  // namespace
}  // namespace tessera::plans

int main(int argc, char** argv) {
  using namespace tessera::plans;
  const std::vector<std::string> words(argv, argv + argc);
  if (argc < 2 || words[1] != "fuzz") return tessera::run_program(argc, argv, models_with_random());
  const auto options = parsed(words);
  if (!options) {
    std::printf(
        "random_plans fuzz N SEED [--mpirun PROGRAM] [--seconds LIMIT] [--max-ranks RANKS]\n"
        "                         [--device cpu|cuda] [--jobs PLANS_AT_ONCE] [--for SECONDS]\n");
    return 2;
  }
  // More ranks than cores, perhaps by the superuser in a container.
  for (const char* variable :
       {"OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "OMPI_MCA_rmaps_base_oversubscribe",
        "OMPI_MCA_mpi_yield_when_idle"})
    setenv(variable, "1", /*overwrite=*/0);
  setenv("OMP_WAIT_POLICY", "passive", /*overwrite=*/0);  // who waits leaves the core to who computes
  try {
    return fuzz(*options);
  } catch (const tessera::Error& error) {
    std::fprintf(stderr, "random_plans: %s\n", error.what());
    return 1;
  }
}
